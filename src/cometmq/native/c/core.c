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
    return add_type(module, &send_encoder_spec);
}

PyDoc_STRVAR(hash_keys_doc,
             "hash_keys(batch)\n--\n\n"
             "Hash the index keys of messages: (hashes, physical offsets, store times), each the\n"
             "bytes of 64-bit numbers.");

PyDoc_STRVAR(gather_records_doc,
             "gather_records(units, first, count, codes, max_count, max_bytes, span_max, read)\n"
             "--\n\n"
             "Gather the records of `count` units: (body, their number, examined units), or None\n"
             "where Python has to read.  `codes` are the wanted tag codes, None for all; `read` is\n"
             "called with physical offset and size and returns the bytes, or None.");

static PyMethodDef functions[] = {
    {"gather_records", gather_records, METH_VARARGS, gather_records_doc},
    {"hash_keys", hash_keys, METH_O, hash_keys_doc},
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
