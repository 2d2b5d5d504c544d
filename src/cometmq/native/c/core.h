/* What the files of the module share of Python. */
#ifndef COMETMQ_CORE_H
#define COMETMQ_CORE_H

/* The stable ABI of Python 3.11: one build serves every later version. */
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "bytes.h"

extern PyType_Spec send_encoder_spec;

/* hash_keys(batch) -> (hashes, physical offsets, store times): index_keys.c. */
PyObject *hash_keys(PyObject *module, PyObject *batch);

/* gather_records(units, first, count, codes, max_count, max_bytes, span_max, read): records.c. */
PyObject *gather_records(PyObject *module, PyObject *arguments);

#endif
