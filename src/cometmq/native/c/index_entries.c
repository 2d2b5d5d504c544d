/* link_entries: index entries as an index file has them, linked through its slot table.
 *
 * As IndexFile._link of store/index/file.py: a slot has the number of the newest entry of its
 * bucket, and each entry the number of the one before it (docs/internals/store.md#index).
 */
#define PY_SSIZE_T_CLEAN
#include "core.h"

enum { ENTRY_BYTES = 20, PAGE_SLOTS = 1024, MS = 1000 };

/* Columns of 64-bit numbers of this machine, and the table in memory. */
typedef struct {
    const int64_t *hashes, *offsets, *times;
    size_t count;
    int32_t *slots;
    size_t slot_count;
    uint8_t *pages;
    /* Number of the first entry. */
    int32_t number;
    /* The times from which the first entry and the others count, in ms; 0: they do not. */
    int64_t first_begin_ms, begin_ms;
} Entries;

/* The seconds of an entry since the file's first one. */
static uint32_t seconds_since(int64_t begin_ms, int64_t ms) {
    if (begin_ms <= 0 || ms <= begin_ms)
        return 0;
    int64_t seconds = (ms - begin_ms) / MS;
    return seconds < INT32_MAX ? (uint32_t)seconds : INT32_MAX;
}

/* Write the entries and update the table; return how many slots are used for the first time. */
static size_t link_all(const Entries *entries, uint8_t *at) {
    size_t new_slots = 0;
    for (size_t i = 0; i < entries->count; i++)
        __builtin_prefetch(&entries->slots[(uint64_t)entries->hashes[i] % entries->slot_count], 1);
    for (size_t i = 0; i < entries->count; i++, at += ENTRY_BYTES) {
        size_t slot = (uint64_t)entries->hashes[i] % entries->slot_count;
        int32_t previous = entries->slots[slot];
        entries->slots[slot] = entries->number + (int32_t)i;
        entries->pages[slot / PAGE_SLOTS] = 1;
        new_slots += previous == 0;
        store_u32(at, (uint32_t)entries->hashes[i]);
        store_u64(at + 4, (uint64_t)entries->offsets[i]);
        store_u32(at + 12, seconds_since(i == 0 ? entries->first_begin_ms : entries->begin_ms,
                                         entries->times[i]));
        store_u32(at + 16, (uint32_t)previous);
    }
    return new_slots;
}

PyObject *link_entries(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer hashes, offsets, times, slots, pages;
    int number;
    long long first_begin_ms, begin_ms;
    if (!PyArg_ParseTuple(arguments, "y*y*y*iLLw*w*", &hashes, &offsets, &times, &number,
                          &first_begin_ms, &begin_ms, &slots, &pages))
        return NULL;
    const Entries entries = {.hashes = hashes.buf,
                             .offsets = offsets.buf,
                             .times = times.buf,
                             .count = (size_t)hashes.len / sizeof(int64_t),
                             .slots = slots.buf,
                             .slot_count = (size_t)slots.len / sizeof(int32_t),
                             .pages = pages.buf,
                             .number = number,
                             .first_begin_ms = first_begin_ms,
                             .begin_ms = begin_ms};
    PyObject *result = NULL;
    if (offsets.len != hashes.len || times.len != hashes.len || entries.slot_count == 0 ||
        (size_t)pages.len < (entries.slot_count + PAGE_SLOTS - 1) / PAGE_SLOTS || number < 0 ||
        entries.count > (size_t)(INT32_MAX - number))
        PyErr_SetString(PyExc_ValueError, "link_entries() got an argument that is out of range");
    else {
        PyObject *bytes =
            PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(entries.count * ENTRY_BYTES));
        if (bytes != NULL) {
            size_t new_slots = link_all(&entries, (uint8_t *)PyBytes_AsString(bytes));
            result = Py_BuildValue("(Nn)", bytes, (Py_ssize_t)new_slots);
        }
    }
    Py_buffer *buffers[] = {&hashes, &offsets, &times, &slots, &pages};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        PyBuffer_Release(buffers[i]);
    return result;
}
