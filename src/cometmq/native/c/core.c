/* The module cometmq.native._core. */
#define PY_SSIZE_T_CLEAN
#include "core.h"

#include "hash.h"

static int add_type(PyObject *module, PyType_Spec *spec) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL)
        return -1;
    int result = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return result;
}

static int execute(PyObject *module) {
    crc32_prepare();
    if (!run_queues_prepare() || add_type(module, &send_encoder_spec) < 0)
        return -1;
    return add_type(module, &copy_encoder_spec);
}

PyDoc_STRVAR(hash_keys_doc,
             "hash_keys(batch)\n--\n\n"
             "Hash the index keys of messages: (hashes, physical offsets, store times), each the\n"
             "bytes of 64-bit numbers.");

PyDoc_STRVAR(link_entries_doc,
             "link_entries(hashes, offsets, times, number, first_begin_ms, begin_ms, slots, pages)\n--\n\n"
             "Make index entries, from a number on, of three columns of 64-bit numbers: (bytes,\n"
             "number of slots used for the first time).  The slot table, 32-bit numbers, leads to\n"
             "them afterwards; `pages` has a byte for 1024 slots, 1 where the table changed.");

PyDoc_STRVAR(extend_tails_doc,
             "extend_tails(queues)\n--\n\n"
             "Add the units of a run to the tails of its queues.");

PyDoc_STRVAR(advance_queues_doc,
             "advance_queues(queues, is_visible, mark, store_ms)\n--\n\n"
             "Move `max`, and `visible` too, of the queues of a run; call mark(queue, first position,\n"
             "store_ms) for those that are not dirty.");

PyDoc_STRVAR(gather_records_doc,
             "gather_records(units, first, count, codes, max_count, max_bytes, span_max, read)\n"
             "--\n\n"
             "Gather the records of `count` units: (body, their number, examined units), or None\n"
             "where Python has to read.  `codes` are the wanted tag codes, None for all; `read` is\n"
             "called with physical offset and size and returns the bytes, or None.");

PyDoc_STRVAR(answer_pull_doc,
             "answer_pull(units, first, count, codes, max_count, max_bytes, span_max, read, parts,\n"
             "            opaque, queue_offset, min_offset, max_offset)\n--\n\n"
             "Gather records as gather_records does, and write the frame of the answer: (frame,\n"
             "their number, examined units, their bytes), or None where Python has to read.");

PyDoc_STRVAR(read_pull_doc,
             "read_pull(data, position)\n--\n\n"
             "Read the frame of a pull: (end, key, serialization type, opaque, queue offset, commit\n"
             "offset, count, bytes), or None.  Pulls with one key pass the same checks.");

PyDoc_STRVAR(is_resident_doc,
             "is_resident(mapping, position, size)\n--\n\n"
             "Say whether bytes of a mapped file are in memory; False where they lie outside.");

PyDoc_STRVAR(cut_messages_doc,
             "cut_messages(buffer, queue, type)\n--\n\n"
             "Make a message of each record: a list of type(queue, queue offset, size, buffer,\n"
             "position), or None where a length or a magic number is wrong.");

PyDoc_STRVAR(decode_record_doc,
             "decode_record(buffer, position, type)\n--\n\n"
             "Decode a plain record: type(*fields in the order of the layout), or None.");

PyDoc_STRVAR(encode_send_doc,
             "encode_send_request(parts, opaque, queue_id, sys_flag, born_ms, flag, properties, body)\n"
             "--\n\n"
             "Write the frame of a send, or None; `parts` are the three constant parts of its\n"
             "header.");

PyDoc_STRVAR(take_send_answers_doc,
             "take_send_answers(data, waiting, taken, token_type, answer_type)\n--\n\n"
             "Take the requests of the plain answers at the beginning of `data` out of `waiting`,\n"
             "append (token, answer) of each to `taken`, and return where the last answer ends.");

PyDoc_STRVAR(record_body_doc,
             "record_body(buffer, position)\n--\n\n"
             "Return the body of a plain record that is not compressed, or None.");

PyDoc_STRVAR(record_property_doc,
             "record_property(buffer, position, name)\n--\n\n"
             "Return the value of a plain record's property, empty without one; or None.");

PyDoc_STRVAR(scan_records_doc,
             "scan_records(data, index, position, end, is_crc_checked, keys_use, queues)\n--\n\n"
             "Read the records from `data[index]`, at a physical offset, that begin before `end`:\n"
             "(physical offset of the next record, number of records, units, number of index\n"
             "entries, index keys), or None where Python has to read.  `queues` has the queues by\n"
             "topic and queue id, `keys_use` is 0 for no index entries, 1 to count, 2 to list them;\n"
             "units are triples of queue, first queue offset and bytes.");

PyDoc_STRVAR(decode_columns_doc,
             "decode_columns(log, log_start, starts, sizes, kinds, queue_id, queue_offsets,\n"
             "               starting_ms, ending_ms, tags, is_crc_checked)\n--\n\n"
             "Decode the records at these positions into columns: (rows, columns), or None where\n"
             "Python has to decode.  Starts, sizes and queue offsets are arrays of 64-bit numbers;\n"
             "`rows` are the positions of the records within the limits, None for all.");

PyDoc_STRVAR(walk_records_doc,
             "walk_records(data, position, last, count)\n--\n\n"
             "Follow the sizes of at most `count` records that begin up to `last`: (their positions\n"
             "as 64-bit numbers, the position after the last one).");

PyDoc_STRVAR(check_entries_doc,
             "check_entries(entries, first, number, newest, log_min, log, log_position)\n--\n\n"
             "Check index entries from the one of index `first` on, which has this number in its\n"
             "file; return how many are sound before the first that Python has to check.  `newest`\n"
             "has the newest entry of each slot and is updated.");

static PyMethodDef functions[] = {
    {"advance_queues", advance_queues, METH_VARARGS, advance_queues_doc},
    {"answer_pull", answer_pull, METH_VARARGS, answer_pull_doc},
    {"check_entries", check_entries, METH_VARARGS, check_entries_doc},
    {"cut_messages", cut_messages, METH_VARARGS, cut_messages_doc},
    {"decode_columns", decode_columns, METH_VARARGS, decode_columns_doc},
    {"decode_record", decode_record, METH_VARARGS, decode_record_doc},
    {"encode_send_request", encode_send_request, METH_VARARGS, encode_send_doc},
    {"extend_tails", extend_tails, METH_O, extend_tails_doc},
    {"gather_records", gather_records, METH_VARARGS, gather_records_doc},
    {"hash_keys", hash_keys, METH_O, hash_keys_doc},
    {"link_entries", link_entries, METH_VARARGS, link_entries_doc},
    {"is_resident", is_resident, METH_VARARGS, is_resident_doc},
    {"read_pull", read_pull_request, METH_VARARGS, read_pull_doc},
    {"record_body", record_body, METH_VARARGS, record_body_doc},
    {"record_property", record_property, METH_VARARGS, record_property_doc},
    {"scan_records", scan_records, METH_VARARGS, scan_records_doc},
    {"take_send_answers", take_send_answers, METH_VARARGS, take_send_answers_doc},
    {"walk_records", walk_records, METH_VARARGS, walk_records_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "cometmq.native._core",
    .m_doc = "The native core: accepts what is plain, or stops.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void) {
    return PyModuleDef_Init(&definition);
}
