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

/* Whether these pages are all in memory. */
static bool are_resident(uint8_t *page, size_t page_bytes, size_t pages) {
    unsigned char flags[PAGES_AT_ONCE];
    while (pages != 0) {
        size_t count = pages < PAGES_AT_ONCE ? pages : PAGES_AT_ONCE;
        if (mincore(page, count * page_bytes, (void *)flags) != 0)
            return false;
        for (size_t i = 0; i < count; i++)
            if (!(flags[i] & 1))
                return false;
        page += count * page_bytes;
        pages -= count;
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
        /* A mapping begins at a page; other memory has no answer. */
        if ((uintptr_t)bytes.buf % page == 0)
            result = are_resident((uint8_t *)bytes.buf + ((size_t)position - into), page,
                                  (into + (size_t)size + page - 1) / page);
    }
    PyBuffer_Release(&bytes);
    return PyBool_FromLong(result);
}
