/* What the files of the module share of Python. */
#ifndef COMETMQ_CORE_H
#define COMETMQ_CORE_H

/* The stable ABI of Python 3.11: one build serves every later version. */
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "bytes.h"

extern PyType_Spec send_encoder_spec;
extern PyType_Spec copy_encoder_spec;

static inline PyObject *buffer_bytes(const Buffer *buffer) {
    return PyBytes_FromStringAndSize((const char *)buffer->bytes, (Py_ssize_t)buffer->size);
}

/* Append an object to a list and give it up; false with an exception. */
static inline bool append_new(PyObject *list, PyObject *item) {
    if (item == NULL)
        return false;
    int result = PyList_Append(list, item);
    Py_DECREF(item);
    return result == 0;
}

/* Put an object into a tuple, which takes it over; false with an exception. */
static inline bool set_item(PyObject *tuple, Py_ssize_t index, PyObject *item) {
    return item != NULL && PyTuple_SetItem(tuple, index, item) == 0;
}

static inline bool set_number(PyObject *tuple, Py_ssize_t index, int64_t number) {
    return set_item(tuple, index, PyLong_FromLongLong(number));
}

/* hash_keys(batch) -> (hashes, physical offsets, store times): index_keys.c. */
PyObject *hash_keys(PyObject *module, PyObject *batch);

/* link_entries(hashes, offsets, times, number, first_begin_ms, begin_ms, slots, pages):
 * index_entries.c. */
PyObject *link_entries(PyObject *module, PyObject *arguments);

/* extend_tails(queues) and advance_queues(queues, is_visible, mark, store_ms): run_queues.c. */
bool run_queues_prepare(void);
PyObject *extend_tails(PyObject *module, PyObject *queues);
PyObject *advance_queues(PyObject *module, PyObject *arguments);

/* gather_records(units, first, count, codes, max_count, max_bytes, span_max, read): records.c. */
PyObject *gather_records(PyObject *module, PyObject *arguments);

/* answer_pull(units, first, count, codes, max_count, max_bytes, span_max, read, parts, opaque,
 * queue_offset, min_offset, max_offset) -> (frame, records, examined units, record bytes):
 * records.c. */
PyObject *answer_pull(PyObject *module, PyObject *arguments);

/* read_pull(data, position) -> (end, key, serialize_type, opaque, queue_offset, commit_offset,
 * max_count, max_bytes): pulls.c. */
PyObject *read_pull_request(PyObject *module, PyObject *arguments);

/* is_resident(mapping, position, size) -> bool: resident.c. */
PyObject *is_resident(PyObject *module, PyObject *arguments);

/* cut_messages(buffer, queue, type) -> list of messages: messages.c. */
PyObject *cut_messages(PyObject *module, PyObject *arguments);

/* record_body(buffer, position) -> body: messages.c. */
PyObject *record_body(PyObject *module, PyObject *arguments);

/* record_property(buffer, position, name) -> value: messages.c. */
PyObject *record_property(PyObject *module, PyObject *arguments);

/* decode_record(buffer, position, type) -> record: messages.c. */
PyObject *decode_record(PyObject *module, PyObject *arguments);

/* encode_send_request(parts, opaque, queue_id, sys_flag, born_ms, flag, properties, body) -> frame:
 * client_sends.c. */
PyObject *encode_send_request(PyObject *module, PyObject *arguments);

/* take_send_answers(data, waiting, taken, token_type, answer_type) -> end: client_sends.c. */
PyObject *take_send_answers(PyObject *module, PyObject *arguments);

/* scan_records(data, index, position, end, is_crc_checked, keys_use, queues): log_scan.c. */
PyObject *scan_records(PyObject *module, PyObject *arguments);

/* decode_columns(log, log_start, starts, sizes, kinds, queue_id, queue_offsets, starting_ms,
 * ending_ms, tags, is_crc_checked): columns.c. */
PyObject *decode_columns(PyObject *module, PyObject *arguments);

/* walk_records(data, position, last, count): columns.c. */
PyObject *walk_records(PyObject *module, PyObject *arguments);

/* check_entries(entries, first, number, newest, log_min, log, log_position): index_check.c. */
PyObject *check_entries(PyObject *module, PyObject *arguments);

#endif
