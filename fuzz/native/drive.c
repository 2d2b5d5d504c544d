/* drive.run: calls an entry point of the extension module with inputs that are made here.
 *
 * It is built into the same file as the module, and makes a hundred thousand calls in the time in
 * which extension.py makes some thousand.  So extension.py looks at what comes back, and these calls
 * give the sanitizers their number.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "mutate.h"
#include "scarce.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

void __sanitizer_set_death_callback(void (*callback)(void));

enum { CALLS_UNTIL_SCARCE_MAX = 12, SCARCE_ONE_OF = 12, UNCHANGED_ONE_OF = 16 };

/* What is said of a call that ends the process. */
static const char *entry_name = "none";
static Input now;

static void tell_input(void) {
    fprintf(stderr, "drive: %s with ", entry_name);
    for (size_t i = 0; i < now.size; i++)
        fprintf(stderr, "%02x", now.bytes[i]);
    fprintf(stderr, "\n");
}

/* UndefinedBehaviorSanitizer calls no death callback, but aborts where it is told to. */
static void tell_abort(int number) {
    tell_input();
    signal(number, SIG_DFL);
}

static Input input_at(PyObject *inputs, uint32_t number) {
    char *bytes;
    Py_ssize_t size;
    PyObject *input = PyList_GetItem(inputs, (Py_ssize_t)number);
    if (input == NULL || PyBytes_AsStringAndSize(input, &bytes, &size) < 0)
        return (Input){0};
    return (Input){(uint8_t *)bytes, (size_t)size > INPUT_BYTES_MAX ? INPUT_BYTES_MAX : (size_t)size};
}

/* A new input; NULL with an exception. */
static PyObject *next_input(PyObject *inputs, bool is_framed) {
    static uint8_t bytes[INPUT_BYTES_MAX];
    uint32_t count = (uint32_t)PyList_Size(inputs);
    Input base = input_at(inputs, chance(count)), other = input_at(inputs, chance(count));
    if (PyErr_Occurred())
        return NULL;
    memcpy(bytes, base.bytes, base.size);
    size_t size = chance(UNCHANGED_ONE_OF) == 0 ? base.size
                                                : mutate(bytes, base.size, other, is_framed);
    return PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)size);
}

/* The arguments of a variant, with the input in place of the None; NULL with an exception. */
static PyObject *arguments_of(PyObject *variant, PyObject *input) {
    Py_ssize_t count = PyTuple_Size(variant);
    PyObject *arguments = count < 0 ? NULL : PyTuple_New(count);
    bool is_there = false;
    for (Py_ssize_t i = 0; arguments != NULL && i < count; i++) {
        PyObject *argument = PyTuple_GetItem(variant, i);
        if (argument == Py_None && !is_there) {
            argument = input;
            is_there = true;
        }
        PyTuple_SetItem(arguments, i, Py_NewRef(argument));
    }
    return arguments;
}

/* Whether a call that failed raised what wrong arguments and scarce memory raise. */
static bool is_expected(void) {
    return PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_ValueError) ||
           PyErr_ExceptionMatches(PyExc_OverflowError) ||
           PyErr_ExceptionMatches(PyExc_MemoryError) ||
           PyErr_ExceptionMatches(PyExc_AttributeError) ||
           PyErr_ExceptionMatches(PyExc_BufferError);
}

/* Call once; whether it gave something else than None or False, -1 with an exception. */
static int call_once(PyObject *entry, PyObject *variants, PyObject *inputs, bool is_framed) {
    PyObject *input = next_input(inputs, is_framed);
    PyObject *variant =
        PyList_GetItem(variants, (Py_ssize_t)chance((uint32_t)PyList_Size(variants)));
    PyObject *arguments =
        input == NULL || variant == NULL ? NULL : arguments_of(variant, input);
    if (arguments == NULL) {
        Py_XDECREF(input);
        return -1;
    }
    char *bytes;
    Py_ssize_t size;
    PyBytes_AsStringAndSize(input, &bytes, &size);
    now = (Input){(uint8_t *)bytes, (size_t)size};
    is_new = false;
    calls_until_scarce =
        chance(SCARCE_ONE_OF) == 0 ? (int)chance(CALLS_UNTIL_SCARCE_MAX) : -1;
    PyObject *result = PyObject_Call(entry, arguments, NULL);
    calls_until_scarce = -1;
    Py_DECREF(arguments);
    int is_taken = result != NULL && result != Py_None && result != Py_False;
    if (result == NULL && is_expected())
        PyErr_Clear();
    else if (result == NULL)
        is_taken = -1;
    Py_XDECREF(result);
    if (is_taken >= 0 && is_new && PyList_Append(inputs, input) < 0)
        is_taken = -1;
    now = (Input){0};
    Py_DECREF(input);
    return is_taken;
}

PyDoc_STRVAR(run_doc,
             "run(name, entry, variants, inputs, is_framed, count, seed)\n--\n\n"
             "Call `entry` `count` times with the arguments of one of `variants`, an input in place\n"
             "of the first None; inputs that reach a new part of the core join `inputs`.  Return how\n"
             "many calls were not left to Python.");

static PyObject *run(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *entry, *variants, *inputs;
    const char *name;
    int is_framed;
    unsigned long long count, seed;
    if (!PyArg_ParseTuple(arguments, "sOO!O!pKK", &name, &entry, &PyList_Type, &variants,
                          &PyList_Type, &inputs, &is_framed, &count, &seed))
        return NULL;
    entry_name = name;
    __sanitizer_set_death_callback(tell_input);
    signal(SIGABRT, tell_abort);
    seed_chance(seed);
    unsigned long long taken_count = 0;
    for (unsigned long long i = 0; i < count; i++) {
        int is_taken = call_once(entry, variants, inputs, is_framed);
        if (is_taken < 0)
            return NULL;
        taken_count += (unsigned)is_taken;
    }
    return PyLong_FromUnsignedLongLong(taken_count);
}

static PyMethodDef functions[] = {
    {"run", run, METH_VARARGS, run_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "drive",
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit_drive(void) {
    return PyModule_Create(&definition);
}
