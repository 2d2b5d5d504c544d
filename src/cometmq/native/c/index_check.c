/* check_entries: whether the entries of an index file lead to records with keys of their hashes.
 *
 * It accepts an entry that `store verify` has nothing to say about (_check_entry of
 * store/offline/verify.py), and stops at the first other one.
 */
#define PY_SSIZE_T_CLEAN
#include "core.h"

#include "hash.h"
#include "message_keys.h"
#include "record.h"

enum { ENTRY_BYTES = 20 };

typedef struct {
    /* The newest entry of each slot so far: numbers of 32 bits of this machine. */
    int32_t *newest;
    uint32_t slot_count;
    /* An entry that leads below it has expired. */
    int64_t log_min;
    Span log;
    int64_t log_position;
    /* The hashes of the record that was read last. */
    int64_t hashes_of;
    uint32_t hashes[STORED_KEYS_MAX];
    int hash_count;
} Check;

/* Hash the keys of the record at a physical offset; false to stop. */
static bool hash_keys_at(Check *check, int64_t position) {
    if (position == check->hashes_of)
        return true;
    Cursor log = cursor_of(check->log);
    Record record;
    if (position < check->log_position ||
        read_bytes(&log, (size_t)(position - check->log_position)) == NULL ||
        !read_record(&log, &record) || record.physical_offset != position ||
        !is_ascii(record.topic))
        return false;
    MessageKeys keys;
    find_message_keys(record.properties, &keys);
    check->hashes_of = -1;
    check->hash_count = hash_stored_keys(java_hash(0, record.topic) * 31 + '#', &keys,
                                         check->hashes);
    if (check->hash_count < 0)
        return false;
    check->hashes_of = position;
    return true;
}

static bool has_hash(const Check *check, uint32_t hash) {
    for (int i = 0; i < check->hash_count; i++)
        if (check->hashes[i] == hash)
            return true;
    return false;
}

static bool is_sound(Check *check, const uint8_t *entry, uint32_t slot) {
    int64_t position = (int64_t)load_u64(entry + 4);
    return (int32_t)load_u32(entry) >= 0 && (int32_t)load_u32(entry + 12) >= 0 &&
           (int32_t)load_u32(entry + 16) == check->newest[slot] &&
           (position < check->log_min ||
            (hash_keys_at(check, position) && has_hash(check, load_u32(entry))));
}

PyObject *check_entries(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer entries, newest, log;
    Py_ssize_t first;
    long long number, log_min, log_position;
    if (!PyArg_ParseTuple(arguments, "y*nLw*Ly*L", &entries, &first, &number, &newest, &log_min,
                          &log, &log_position))
        return NULL;
    PyObject *result = NULL;
    if (first < 0 || first > entries.len / ENTRY_BYTES || number < 0 ||
        number > INT32_MAX - entries.len / ENTRY_BYTES || newest.len < (Py_ssize_t)sizeof(int32_t) ||
        newest.len / (Py_ssize_t)sizeof(int32_t) > INT32_MAX ||
        (uintptr_t)newest.buf % sizeof(int32_t) != 0 || log_position < 0)
        PyErr_SetString(PyExc_ValueError, "check_entries() got an argument that is out of range");
    else {
        Check check = {.newest = newest.buf,
                       .slot_count = (uint32_t)((size_t)newest.len / sizeof(int32_t)),
                       .log_min = log_min,
                       .log = {log.buf, (size_t)log.len},
                       .log_position = log_position,
                       .hashes_of = -1};
        Cursor cursor = cursor_of((Span){entries.buf, (size_t)entries.len});
        read_bytes(&cursor, (size_t)first * ENTRY_BYTES);
        Py_ssize_t count = 0;
        const uint8_t *entry;
        while ((entry = read_bytes(&cursor, ENTRY_BYTES)) != NULL) {
            uint32_t slot = load_u32(entry) % check.slot_count;
            if (!is_sound(&check, entry, slot))
                break;
            check.newest[slot] = (int32_t)(number + count++);
        }
        result = PyLong_FromSsize_t(count);
    }
    PyBuffer_Release(&entries);
    PyBuffer_Release(&newest);
    PyBuffer_Release(&log);
    return result;
}
