/* hash_keys: the index entries of messages that wait to be indexed.
 *
 * As KeyHasher.hash_batch of store/index/keys.py: an entry for UNIQ_KEY, one for each of KEYS, one
 * for "T#" + TAGS, in this order, with the hash that Java's IndexFile gives the key
 * (docs/internals/store.md#index).  A run that the core encoded has its hashes already, and a stored
 * message that scan_records read.
 */
#define PY_SSIZE_T_CLEAN
#include "core.h"

#include "hash.h"
#include "message_keys.h"

/* Columns of the result: hash, physical offset, store time; numbers of 64 bits of this machine. */
typedef struct {
    Buffer hashes, offsets, times;
} Entries;

/* The UTF-8 of a text, which lives as long as the text and `*owner`; false with an exception. */
static bool utf8_of(PyObject *text, PyObject **owner, Span *utf8) {
    Py_ssize_t size;
    const char *start = PyUnicode_AsUTF8AndSize(text, &size);
    if (start == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
            return false;
        /* Half a surrogate pair has no UTF-8; Java hashes it all the same. */
        PyErr_Clear();
        Py_XDECREF(*owner);
        *owner = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass");
        if (*owner == NULL)
            return false;
        start = PyBytes_AsString(*owner);
        size = PyBytes_Size(*owner);
    }
    *utf8 = (Span){(const uint8_t *)start, (size_t)size};
    return true;
}

static bool add_entry(Entries *entries, int64_t key_hash, int64_t physical_offset,
                      int64_t store_ms) {
    if (buffer_add(&entries->hashes, &key_hash, sizeof key_hash) &&
        buffer_add(&entries->offsets, &physical_offset, sizeof physical_offset) &&
        buffer_add(&entries->times, &store_ms, sizeof store_ms))
        return true;
    PyErr_NoMemory();
    return false;
}

/* Add an entry for each word of KEYS; spaces separate the words. */
static bool add_words(Entries *entries, uint32_t prefix, Span keys, int64_t physical_offset,
                      int64_t store_ms) {
    Cursor cursor = cursor_of(keys);
    for (Span word; read_word(&cursor, &word);)
        if (!add_entry(entries, index_hash(java_hash_utf8(prefix, word)), physical_offset,
                       store_ms))
            return false;
    return true;
}

static bool add_texts(Entries *entries, uint32_t prefix, PyObject *texts, PyObject **owner,
                      int64_t physical_offset, int64_t store_ms) {
    PyObject *uniq_key = PyTuple_GetItem(texts, 0), *keys = PyTuple_GetItem(texts, 1),
             *tags = PyTuple_GetItem(texts, 2);
    Span text;
    if (uniq_key != Py_None && !(utf8_of(uniq_key, owner, &text) &&
                                 add_entry(entries, index_hash(java_hash_utf8(prefix, text)),
                                           physical_offset, store_ms)))
        return false;
    if (keys != Py_None && !(utf8_of(keys, owner, &text) &&
                             add_words(entries, prefix, text, physical_offset, store_ms)))
        return false;
    if (tags == Py_None)
        return true;
    if (!utf8_of(tags, owner, &text))
        return false;
    prefix = java_hash(prefix, (Span){(const uint8_t *)"T#", 2});
    return text.size == 0 || add_entry(entries, index_hash(java_hash_utf8(prefix, text)),
                                       physical_offset, store_ms);
}

/* Add the entries of a run: IndexEntry, one behind the other. */
static bool add_run(Entries *entries, PyObject *run, int64_t physical_offset, int64_t store_ms) {
    Cursor cursor =
        cursor_of((Span){(const uint8_t *)PyBytes_AsString(run), (size_t)PyBytes_Size(run)});
    const uint8_t *next;
    while ((next = read_bytes(&cursor, sizeof(IndexEntry))) != NULL) {
        IndexEntry entry;
        memcpy(&entry, next, sizeof entry);
        int64_t position = (int64_t)((uint64_t)physical_offset + entry.distance);
        if (!add_entry(entries, entry.hash, position, store_ms))
            return false;
    }
    return true;
}

/* Add the hashes that scan_records noted: numbers of 32 bits of this machine. */
static bool add_hashes(Entries *entries, PyObject *hashes, int64_t physical_offset,
                       int64_t store_ms) {
    Cursor cursor = cursor_of(
        (Span){(const uint8_t *)PyBytes_AsString(hashes), (size_t)PyBytes_Size(hashes)});
    const uint8_t *next;
    while ((next = read_bytes(&cursor, sizeof(uint32_t))) != NULL) {
        uint32_t hash;
        memcpy(&hash, next, sizeof hash);
        if (!add_entry(entries, hash, physical_offset, store_ms))
            return false;
    }
    return true;
}

static bool add_batch(Entries *entries, PyObject *batch, PyObject **owner) {
    PyObject *topic_before = NULL;
    uint32_t prefix = 0;
    Py_ssize_t count = PyList_Size(batch);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *message = PyList_GetItem(batch, i);
        if (message == NULL || !PyTuple_Check(message) || PyTuple_Size(message) != 4) {
            PyErr_SetString(PyExc_TypeError, "hash_keys() takes a list of messages");
            return false;
        }
        PyObject *topic = PyTuple_GetItem(message, 0), *keys = PyTuple_GetItem(message, 3);
        int64_t physical_offset = PyLong_AsLongLong(PyTuple_GetItem(message, 1));
        int64_t store_ms = PyLong_AsLongLong(PyTuple_GetItem(message, 2));
        if (PyErr_Occurred())
            return false;
        if (!PyBytes_Check(keys) && (!PyTuple_Check(keys) || PyTuple_Size(keys) != 3)) {
            PyErr_SetString(PyExc_TypeError, "hash_keys() takes three texts or their hashes");
            return false;
        }
        if (PyBytes_Check(keys)) {
            /* A run has the number of its messages in place of a topic. */
            if (!(PyLong_Check(topic) ? add_run : add_hashes)(entries, keys, physical_offset,
                                                              store_ms))
                return false;
            continue;
        }
        if (topic != topic_before) {
            Span text;
            if (!utf8_of(topic, owner, &text))
                return false;
            prefix = java_hash_utf8(0, text) * 31 + '#';
            topic_before = topic;
        }
        if (!add_texts(entries, prefix, keys, owner, physical_offset, store_ms))
            return false;
    }
    return true;
}

PyObject *hash_keys(PyObject *module, PyObject *batch) {
    (void)module;
    if (!PyList_Check(batch)) {
        PyErr_SetString(PyExc_TypeError, "hash_keys() takes a list");
        return NULL;
    }
    Entries entries = {0};
    PyObject *result = NULL, *owner = NULL;
    if (add_batch(&entries, batch, &owner))
        result = Py_BuildValue("(NNN)", buffer_bytes(&entries.hashes), buffer_bytes(&entries.offsets),
                               buffer_bytes(&entries.times));
    Py_XDECREF(owner);
    buffer_free(&entries.hashes);
    buffer_free(&entries.offsets);
    buffer_free(&entries.times);
    return result;
}
