/* scan_records: the records of a stretch of the log, as units of their queues and index entries.
 *
 * It reads record by record as LogReader of store/log/reader.py does, and derives what
 * store/base/dispatch.py derives: recovery appends the units to queues or compares them with those
 * that are there, and `store verify` compares them.  It stops at a record that is damaged or odd,
 * of a queue that the caller did not name, or whose queue offset does not follow.  The last record
 * that it read stays with Python, which checks a log's last record more closely.
 */
#define PY_SSIZE_T_CLEAN
#include "core.h"

#include "hash.h"
#include "message_keys.h"
#include "record.h"

enum {
    UNIT_BYTES = 20,
    /* More queues than this in one call end it. */
    QUEUES_MAX = 1024,
    /* Slots of the table in which queues are found; a power of two. */
    SLOTS = 4096,
};

/* A queue of the stretch. */
typedef struct {
    Span topic;
    int32_t queue_id;
    PyObject *queue;
    PyObject *topic_text;
    /* Hash of "topic#", with which the index hashes of its keys begin. */
    uint32_t key_prefix;
    int64_t first_offset, next_offset;
    size_t count;
    /* Where its next unit goes. */
    uint8_t *unit;
} Queue;

typedef struct {
    int64_t position;
    int64_t tags_code;
    uint32_t size;
    uint32_t queue_number;
} Unit;

/* What the index entries are needed for. */
typedef enum { NO_KEYS, COUNT_KEYS, LIST_KEYS } KeysUse;

typedef struct {
    int64_t limit;
    bool is_crc_checked;
    KeysUse keys_use;
    PyObject *known_queues;
    /* Queues, one behind the other. */
    Buffer queues;
    size_t queue_count;
    /* One more than the number of a queue; 0: free. */
    uint16_t slots[SLOTS];
    Buffer units;
    size_t record_count, entry_count;
    PyObject *keys;
} Scan;

static Queue *queue_at(const Scan *scan, size_t number) {
    return (Queue *)(void *)scan->queues.bytes + number;
}

/* Look a queue up among those of the caller; 1: it is there, 0: stop, -1: an exception. */
static int open_queue(const Scan *scan, const Record *record, Queue *queue) {
    *queue = (Queue){.topic = record->topic, .queue_id = record->queue_id};
    PyObject *key = Py_BuildValue("(y#i)", record->topic.start, (Py_ssize_t)record->topic.size,
                                  (int)record->queue_id);
    if (key == NULL)
        return -1;
    queue->queue = PyDict_GetItemWithError(scan->known_queues, key);
    Py_DECREF(key);
    if (queue->queue == NULL)
        return PyErr_Occurred() ? -1 : 0;
    queue->topic_text = PyUnicode_DecodeUTF8((const char *)record->topic.start,
                                             (Py_ssize_t)record->topic.size, NULL);
    if (queue->topic_text == NULL)
        return -1;
    Py_INCREF(queue->queue);
    queue->key_prefix = java_hash_utf8(0, record->topic) * 31 + '#';
    return 1;
}

/* Find the queue of a record among those of the stretch, else look it up; as `open_queue`. */
static int find_queue(Scan *scan, const Record *record, Queue **found) {
    uint32_t slot = java_hash((uint32_t)record->queue_id * 0x9E3779B1u, record->topic) % SLOTS;
    for (; scan->slots[slot] != 0; slot = (slot + 1) % SLOTS) {
        Queue *queue = queue_at(scan, scan->slots[slot] - 1u);
        if (queue->queue_id == record->queue_id &&
            is_equal(queue->topic, record->topic.start, record->topic.size)) {
            *found = queue;
            return 1;
        }
    }
    if (scan->queue_count == QUEUES_MAX)
        return 0;
    if (buffer_room(&scan->queues, sizeof(Queue)) == NULL)
        return PyErr_NoMemory(), -1;
    *found = queue_at(scan, scan->queue_count);
    int is_open = open_queue(scan, record, *found);
    if (is_open == 1) {
        scan->queues.size += sizeof(Queue);
        scan->slots[slot] = (uint16_t)++scan->queue_count;
    }
    return is_open;
}

/* Note the index entries of a record; 1: done, 0: stop, -1: an exception. */
static int note_keys(Scan *scan, const Queue *queue, const Record *record,
                     const MessageKeys *keys) {
    if (scan->keys_use == NO_KEYS ||
        (record->sys_flag & SYS_FLAG_TRANSACTION) == SYS_FLAG_TRANSACTION ||
        (keys->uniq_key.size == 0 && keys->keys.size == 0 && keys->tags.size == 0))
        return 1;
    uint32_t hashes[STORED_KEYS_MAX];
    int count = hash_stored_keys(queue->key_prefix, keys, hashes);
    if (count < 0)
        return 0;
    scan->entry_count += (size_t)count;
    if (scan->keys_use == COUNT_KEYS)
        return 1;
    PyObject *note = Py_BuildValue(
        "(OLLy#)", queue->topic_text, (long long)record->physical_offset,
        (long long)record->store_ms, (const char *)hashes, count * (Py_ssize_t)sizeof *hashes);
    return append_new(scan->keys, note) ? 1 : -1;
}

/* Note unit and index entries of a record; 1: done, 0: stop before it, -1: an exception. */
static int take_record(Scan *scan, const Record *record) {
    Queue *queue;
    int is_found = find_queue(scan, record, &queue);
    if (is_found != 1)
        return is_found;
    MessageKeys keys;
    find_message_keys(record->properties, &keys);
    bool is_queued = !(record->sys_flag & SYS_FLAG_PREPARED);
    if (is_queued && (!is_ascii(keys.tags) || record->queue_offset < 0 ||
                      (queue->count != 0 && record->queue_offset != queue->next_offset)))
        return 0;
    int is_noted = note_keys(scan, queue, record, &keys);
    if (is_noted != 1)
        return is_noted;
    scan->record_count++;
    if (!is_queued)
        return 1;
    if (queue->count++ == 0)
        queue->first_offset = record->queue_offset;
    queue->next_offset = record->queue_offset == INT64_MAX ? -1 : record->queue_offset + 1;
    Unit unit = {record->physical_offset, (int32_t)java_hash(0, keys.tags),
                 (uint32_t)record->bytes.size, (uint32_t)(queue - queue_at(scan, 0))};
    return buffer_add(&scan->units, &unit, sizeof unit) ? 1 : (PyErr_NoMemory(), -1);
}

/* Read the record of a physical offset. */
static bool read_sound(const Scan *scan, Cursor *log, int64_t position, Record *record) {
    return position < scan->limit && read_record(log, record) &&
           record->physical_offset == position &&
           (!scan->is_crc_checked || has_body_crc(record));
}

/* Take records while another one follows; the physical offset of the first record that was not
 * taken, -1: an exception. */
static int64_t scan_log(Scan *scan, Cursor log, int64_t position) {
    Record record, next;
    if (!read_sound(scan, &log, position, &record))
        return position;
    for (;; record = next, position = next.physical_offset) {
        int64_t following = position + (int64_t)record.bytes.size;
        if (!read_sound(scan, &log, following, &next))
            return position;
        int is_taken = take_record(scan, &record);
        if (is_taken != 1)
            return is_taken < 0 ? -1 : position;
    }
}

/* (queue, queue offset of the first unit, units) of each queue. */
static PyObject *runs_of(Scan *scan) {
    PyObject *runs = PyList_New(0);
    for (size_t i = 0; runs != NULL && i < scan->queue_count; i++) {
        Queue *queue = queue_at(scan, i);
        if (queue->count == 0)
            continue;
        PyObject *units = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(queue->count * UNIT_BYTES));
        queue->unit = units == NULL ? NULL : (uint8_t *)PyBytes_AsString(units);
        if (units == NULL ||
            !append_new(runs, Py_BuildValue("(OLN)", queue->queue,
                                            (long long)queue->first_offset, units)))
            Py_CLEAR(runs);
    }
    if (runs == NULL)
        return NULL;
    Cursor noted = cursor_of(buffer_span(&scan->units));
    const uint8_t *next;
    while ((next = read_bytes(&noted, sizeof(Unit))) != NULL) {
        Unit unit;
        memcpy(&unit, next, sizeof unit);
        Queue *queue = queue_at(scan, unit.queue_number);
        store_u64(queue->unit, (uint64_t)unit.position);
        store_u32(queue->unit + 8, unit.size);
        store_u64(queue->unit + 12, (uint64_t)unit.tags_code);
        queue->unit += UNIT_BYTES;
    }
    return runs;
}

static PyObject *result_of(Scan *scan, int64_t next) {
    PyObject *runs = runs_of(scan);
    if (runs == NULL)
        return NULL;
    return Py_BuildValue("(LnNnO)", (long long)next, (Py_ssize_t)scan->record_count, runs,
                         (Py_ssize_t)scan->entry_count, scan->keys);
}

PyObject *scan_records(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer data;
    Py_ssize_t index;
    long long position, end;
    int is_crc_checked, keys_use;
    PyObject *queues;
    if (!PyArg_ParseTuple(arguments, "y*nLLpiO!", &data, &index, &position, &end, &is_crc_checked,
                          &keys_use, &PyDict_Type, &queues))
        return NULL;
    PyObject *result = NULL;
    Scan *scan = calloc(1, sizeof *scan);
    if (index < 0 || index > data.len || position < 0 || position > INT64_MAX - data.len ||
        keys_use < NO_KEYS || keys_use > LIST_KEYS)
        PyErr_SetString(PyExc_ValueError, "scan_records() got an argument that is out of range");
    else if (scan == NULL || (scan->keys = PyList_New(0)) == NULL)
        PyErr_NoMemory();
    else {
        scan->limit = end;
        scan->is_crc_checked = is_crc_checked;
        scan->keys_use = (KeysUse)keys_use;
        scan->known_queues = queues;
        Cursor log = cursor_of((Span){data.buf, (size_t)data.len});
        read_bytes(&log, (size_t)index);
        int64_t next = scan_log(scan, log, position);
        if (next >= 0)
            result = scan->record_count == 0 ? Py_NewRef(Py_None) : result_of(scan, next);
    }
    for (size_t i = 0; scan != NULL && i < scan->queue_count; i++) {
        Py_CLEAR(queue_at(scan, i)->queue);
        Py_CLEAR(queue_at(scan, i)->topic_text);
    }
    if (scan != NULL) {
        Py_CLEAR(scan->keys);
        buffer_free(&scan->queues);
        buffer_free(&scan->units);
    }
    free(scan);
    PyBuffer_Release(&data);
    return result;
}
