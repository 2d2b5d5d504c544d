/* is_resident: whether bytes of a mapped file can be touched without waiting for a disk.
 *
 * The kernel answers for pages.  It may call a page resident that lies behind the end of a file that
 * was cut, so the caller asks for the end first. */
#define _DEFAULT_SOURCE
#define PY_SSIZE_T_CLEAN
#include "core.h"

#include <sys/mman.h>
#include <unistd.h>

enum { PAGES_AT_ONCE = 256 };

/* Whether the pages of the next bytes, the first of which begins one, are all in memory. */
static bool are_resident(Cursor *cursor, size_t size, size_t page_bytes) {
    unsigned char flags[PAGES_AT_ONCE];
    while (size != 0) {
        size_t part = size < PAGES_AT_ONCE * page_bytes ? size : PAGES_AT_ONCE * page_bytes;
        const uint8_t *pages = read_bytes(cursor, part);
        if (pages == NULL || mincore((void *)(uintptr_t)pages, part, (void *)flags) != 0)
            return false;
        for (size_t i = 0; i < (part + page_bytes - 1) / page_bytes; i++)
            if (!(flags[i] & 1))
                return false;
        size -= part;
    }
    return true;
}

PyObject *is_resident(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *mapping;
    Py_ssize_t position, size;
    Py_buffer bytes;
    if (!PyArg_ParseTuple(arguments, "Onn", &mapping, &position, &size))
        return NULL;
    if (PyObject_GetBuffer(mapping, &bytes, PyBUF_SIMPLE) < 0)
        return NULL;
    bool result = false;
    long page_bytes = sysconf(_SC_PAGESIZE);
    if (page_bytes > 0 && position >= 0 && size > 0 && position <= bytes.len &&
        size <= bytes.len - position) {
        size_t page = (size_t)page_bytes, into = (size_t)position % page;
        Cursor cursor = cursor_of((Span){bytes.buf, (size_t)bytes.len});
        read_bytes(&cursor, (size_t)position - into);
        /* A mapping begins at a page; other memory has no answer. */
        result = (uintptr_t)bytes.buf % page == 0 &&
                 are_resident(&cursor, into + (size_t)size, page);
    }
    PyBuffer_Release(&bytes);
    return PyBool_FromLong(result);
}
