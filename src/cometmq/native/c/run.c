#define PY_SSIZE_T_CLEAN
#include "run.h"

#include "hash.h"

enum {
    UNIT_BYTES = 20,
    KNOWN_CAPACITY_MIN = 256,
    /* With so many slots in use, 12 MB of memory, the table begins again. */
    KNOWN_CAPACITY_MAX = 131072,
};

/* A message of a run. */
typedef struct {
    int64_t position;
    int64_t tags_code;
    uint32_t size;
    uint32_t queue_number;
} StoredMessage;

/* -- the store -------------------------------------------------------------------------------- */

bool store_open(Store *store, PyObject *topics, PyObject *queue_type) {
    store->topics = Py_NewRef(topics);
    store->queue_type = Py_NewRef(queue_type);
    store->max_name = PyUnicode_InternFromString("max");
    store->magic_name = PyUnicode_InternFromString("magic");
    store->topic_part_name = PyUnicode_InternFromString("topic_part");
    store->is_watched_name = PyUnicode_InternFromString("is_watched");
    store->is_gone_name = PyUnicode_InternFromString("is_gone");
    return store->max_name != NULL && store->magic_name != NULL &&
           store->topic_part_name != NULL && store->is_watched_name != NULL &&
           store->is_gone_name != NULL;
}

int store_traverse(Store *store, visitproc visit, void *arg) {
    Py_VISIT(store->topics);
    Py_VISIT(store->queue_type);
    for (size_t i = 0; i < store->known_capacity; i++)
        Py_VISIT(store->known[i].queue);
    return 0;
}

/* Forget the known queues. */
static void forget_queues(Store *store) {
    KnownQueue *known = store->known;
    size_t capacity = store->known_capacity;
    store->known = NULL;
    store->known_capacity = store->known_count = 0;
    for (size_t i = 0; i < capacity; i++) {
        Py_CLEAR(known[i].topic);
        Py_CLEAR(known[i].queue);
        Py_CLEAR(known[i].topic_part);
    }
    free(known);
}

void store_clear(Store *store) {
    Py_CLEAR(store->topics);
    Py_CLEAR(store->queue_type);
    forget_queues(store);
}

void store_free(Store *store) {
    store_clear(store);
    Py_CLEAR(store->max_name);
    Py_CLEAR(store->magic_name);
    Py_CLEAR(store->topic_part_name);
    Py_CLEAR(store->is_watched_name);
    Py_CLEAR(store->is_gone_name);
    buffer_free(&store->records);
    buffer_free(&store->stored);
    buffer_free(&store->units);
    buffer_free(&store->entries);
}

/* -- known queues ----------------------------------------------------------------------------- */

static uint32_t hash_queue(uint32_t key_prefix, int32_t queue_id) {
    uint32_t hash = (key_prefix ^ (uint32_t)queue_id * 0x9E3779B1u) * 0x85EBCA6Bu;
    return hash ^ hash >> 15;
}

/* The slot of a queue in the table, or the free one where it belongs; there is a free one. */
static KnownQueue *find_slot(const Store *store, uint32_t hash, Span topic, int32_t queue_id) {
    size_t mask = store->known_capacity - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        KnownQueue *known = &store->known[i];
        if (known->queue == NULL ||
            (known->hash == hash && known->queue_id == queue_id &&
             is_equal(known->topic_bytes, topic.start, topic.size)))
            return known;
    }
}

/* Make the table so large that one more queue fills half of it at most; false without memory.  A
 * run is not open. */
static bool make_room(Store *store) {
    size_t before = store->known_capacity;
    if (2 * (store->known_count + QUEUES_MAX) <= before)
        return true;
    if (before >= KNOWN_CAPACITY_MAX)
        forget_queues(store);
    size_t capacity = store->known_capacity == 0 ? KNOWN_CAPACITY_MIN : 2 * store->known_capacity;
    KnownQueue *old = store->known, *known = calloc(capacity, sizeof *known);
    if (known == NULL)
        return false;
    before = store->known_capacity;
    store->known = known;
    store->known_capacity = capacity;
    for (size_t i = 0; i < before; i++)
        if (old[i].queue != NULL)
            *find_slot(store, old[i].hash, old[i].topic_bytes, old[i].queue_id) = old[i];
    free(old);
    return true;
}

/* -- queues of a run -------------------------------------------------------------------------- */

static int64_t int_attribute(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL)
        return -1;
    int64_t number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return number;
}

/* Read what is the same for every record of a queue; false with an exception. */
static bool read_constants(const Store *store, Span topic, KnownQueue *known) {
    known->topic_part = PyObject_GetAttr(known->queue, store->topic_part_name);
    char *bytes;
    Py_ssize_t size;
    if (known->topic_part == NULL ||
        PyBytes_AsStringAndSize(known->topic_part, &bytes, &size) < 0)
        return false;
    if ((size_t)size < topic.size) {
        PyErr_SetString(PyExc_ValueError, "a record names the topic of its queue");
        return false;
    }
    known->topic_part_bytes = (Span){(const uint8_t *)bytes, (size_t)size};
    known->topic_bytes = (Span){(const uint8_t *)bytes + size - topic.size, topic.size};
    known->magic = (uint32_t)int_attribute(known->queue, store->magic_name);
    return !PyErr_Occurred();
}

/* Look a queue up in the store; 1: it is there, 0: stop, -1: an exception. */
static int look_up(const Store *store, Span topic, KnownQueue *known) {
    known->topic = PyUnicode_FromStringAndSize((const char *)topic.start, (Py_ssize_t)topic.size);
    PyObject *queues =
        known->topic == NULL ? NULL : PyDict_GetItemWithError(store->topics, known->topic);
    PyObject *number = queues == NULL ? NULL : PyLong_FromLong(known->queue_id);
    if (number == NULL)
        return PyErr_Occurred() ? -1 : 0;
    known->queue = Py_XNewRef(PyDict_GetItemWithError(queues, number));
    Py_DECREF(number);
    if (known->queue == NULL)
        return PyErr_Occurred() ? -1 : 0;
    if ((PyObject *)Py_TYPE(known->queue) != store->queue_type)
        return 0;
    return read_constants(store, topic, known) ? 1 : -1;
}

/* Fill a free slot with a queue of the store; as `look_up`. */
static int know_queue(Store *store, Span topic, KnownQueue *slot, KnownQueue known) {
    int is_there = look_up(store, topic, &known);
    /* A topic that a record names otherwise would never be found again. */
    if (is_there == 1 && is_equal(known.topic_bytes, topic.start, topic.size)) {
        *slot = known;
        store->known_count++;
        return 1;
    }
    Py_CLEAR(known.topic);
    Py_CLEAR(known.queue);
    Py_CLEAR(known.topic_part);
    return is_there < 0 ? -1 : 0;
}

/* A flag of a queue; -1 with an exception. */
static int flag_attribute(PyObject *queue, PyObject *name) {
    PyObject *flag = PyObject_GetAttr(queue, name);
    if (flag == NULL)
        return -1;
    Py_DECREF(flag);
    return flag == Py_True;
}

/* Make a known queue one of the run; 1: done, 0: stop, -1: an exception. */
static int join_run(Run *run, KnownQueue *known) {
    Store *store = run->store;
    if ((PyObject *)Py_TYPE(known->queue) != store->queue_type)
        return 0;
    int is_gone = flag_attribute(known->queue, store->is_gone_name);
    if (is_gone != 0) {
        /* The store has deleted it, and may have made another one since. */
        store->has_gone = true;
        return is_gone < 0 ? -1 : 0;
    }
    int is_watched = flag_attribute(known->queue, store->is_watched_name);
    RunQueue queue = {.topic_bytes = known->topic_bytes,
                      .topic_part_bytes = known->topic_part_bytes,
                      .topic = known->topic,
                      .queue = known->queue,
                      .note = &known->note,
                      .queue_id = known->queue_id,
                      .magic = known->magic,
                      .key_prefix = known->key_prefix,
                      .is_watched = is_watched == 1,
                      .next_offset = int_attribute(known->queue, store->max_name)};
    if (PyErr_Occurred())
        return -1;
    known->run_number = store->run_count;
    known->index = run->queue_count;
    run->queues[run->queue_count++] = queue;
    return 1;
}

int find_queue(Run *run, Span topic, int32_t queue_id, RunQueue **found) {
    Store *store = run->store;
    uint32_t key_prefix = java_hash(0, topic) * 31 + '#';
    uint32_t hash = hash_queue(key_prefix, queue_id);
    KnownQueue *known = find_slot(store, hash, topic, queue_id);
    if (known->queue == NULL || known->run_number != store->run_count) {
        if (run->queue_count == QUEUES_MAX)
            return 0;
        const KnownQueue fresh = {.hash = hash, .queue_id = queue_id, .key_prefix = key_prefix};
        int is_there = known->queue == NULL ? know_queue(store, topic, known, fresh) : 1;
        if (is_there == 1)
            is_there = join_run(run, known);
        if (is_there != 1)
            return is_there;
    }
    *found = &run->queues[known->index];
    return 1;
}

/* -- records ---------------------------------------------------------------------------------- */

/* Write the record of a message (docs/internals/store.md#record). */
static void write_record(uint8_t *at, const Run *run, const RunQueue *queue,
                         const Message *message) {
    store_u32(at, message->size);
    store_u32(at + 4, queue->magic);
    store_u32(at + 8, crc32_of(message->body) & 0x7FFFFFFF);
    store_u32(at + 12, (uint32_t)queue->queue_id);
    store_u32(at + 16, (uint32_t)message->flag);
    store_u64(at + 20, (uint64_t)queue->next_offset);
    store_u64(at + 28, (uint64_t)run->wrote);
    store_u32(at + 36, message->sys_flag);
    store_u64(at + 40, (uint64_t)message->born_ms);
    put_span(at + 48, message->origin);
    store_u32(at + 84, (uint32_t)message->body.size);
    at = put_span(at + RECORD_HEAD_BYTES, message->body);
    at = put_span(at, queue->topic_part_bytes);
    store_u16(at, (uint16_t)(message->properties.size + message->added.size));
    put_span(put_span(at + 2, message->properties), message->added);
}

/* -- index and arrivals ----------------------------------------------------------------------- */

/* Put the hashes of a message's index entries into `hashes`, in Java's order; return their number,
 * or -1 where there are more than fit. */
static int hash_index_keys(const RunQueue *queue, const MessageKeys *keys, uint32_t *hashes) {
    int count = 0;
    if (keys->uniq_key.start != NULL)
        hashes[count++] = index_hash(java_hash(queue->key_prefix, keys->uniq_key));
    Cursor cursor = cursor_of(keys->keys);
    for (Span word; read_word(&cursor, &word);) {
        if (count == INDEX_KEYS_MAX - 1)
            return -1;
        hashes[count++] = index_hash(java_hash(queue->key_prefix, word));
    }
    if (keys->tags.start != NULL) {
        uint32_t prefix = java_hash(queue->key_prefix, (Span){(const uint8_t *)"T#", 2});
        hashes[count++] = index_hash(java_hash(prefix, keys->tags));
    }
    return count;
}

/* Note the index entries of a message; false without memory. */
static bool note_entries(Run *run, const Message *message) {
    IndexEntry entry = {.distance = (uint32_t)(run->wrote - run->start)};
    for (int i = 0; i < message->hash_count; i++) {
        entry.hash = message->hashes[i];
        if (!buffer_add(&run->store->entries, &entry, sizeof entry))
            return false;
    }
    return true;
}

/* The index entries of all messages, or None; NULL with an exception. */
static PyObject *entries_of(const Run *run) {
    const Store *store = run->store;
    if (!store->is_indexed)
        return Py_NewRef(Py_None);
    return Py_BuildValue("(nLON)", (Py_ssize_t)(store->stored.size / sizeof(StoredMessage)),
                         (long long)run->start, run->store_ms, buffer_bytes(&store->entries));
}

static bool note_arrival(Run *run, const RunQueue *queue, int64_t tags_code) {
    PyObject *arrival = Py_BuildValue("(OiLL)", queue->topic, queue->queue_id,
                                      (long long)queue->next_offset, (long long)tags_code);
    return append_new(run->arrivals, arrival);
}

/* Note the arrival of messages that were just added to a queue, once for equal tags codes in a row.
 * With SYNC_FLUSH messages become visible later, by the arrivals; so every queue has them. */
static bool note_arrivals(Run *run, const RunQueue *queue, const Message *messages, size_t count) {
    if (!queue->is_watched && !run->store->is_sync)
        return true;
    for (size_t i = 0; i < count; i++)
        if ((i == 0 || messages[i].tags_code != messages[i - 1].tags_code) &&
            !note_arrival(run, queue, messages[i].tags_code))
            return false;
    return true;
}

/* -- messages --------------------------------------------------------------------------------- */

bool measure_message(const Run *run, const RunQueue *queue, const MessageKeys *keys,
                     Message *message) {
    size_t properties_bytes = message->properties.size + message->added.size;
    if (message->body.size > (uint64_t)run->body_bytes_max ||
        properties_bytes > PROPERTIES_BYTES_MAX)
        return false;
    message->size = (uint32_t)(RECORD_HEAD_BYTES + message->body.size +
                               queue->topic_part_bytes.size + 2 + properties_bytes);
    message->tags_code = keys->tags.start == NULL ? 0 : (int32_t)java_hash(0, keys->tags);
    message->hash_count = hash_index_keys(queue, keys, message->hashes);
    return message->hash_count >= 0;
}

bool has_room(const Run *run, const Message *messages, size_t count) {
    int64_t left = run->limit - run->wrote;
    for (size_t i = 0; i < count; i++)
        if ((left -= messages[i].size) < 0)
            return false;
    return true;
}

static bool add_message(Run *run, RunQueue *queue, const Message *message) {
    Store *store = run->store;
    uint8_t *record = buffer_room(&store->records, message->size);
    StoredMessage stored = {run->wrote, message->tags_code, message->size,
                            (uint32_t)(queue - run->queues)};
    if (record == NULL || !buffer_add(&store->stored, &stored, sizeof stored) ||
        (store->is_indexed && !note_entries(run, message)))
        return PyErr_NoMemory(), false;
    write_record(record, run, queue, message);
    store->records.size += message->size;
    if (queue->count++ == 0)
        queue->first_position = run->wrote;
    queue->next_offset++;
    run->wrote += message->size;
    return true;
}

bool add_messages(Run *run, RunQueue *queue, const Message *messages, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!add_message(run, queue, &messages[i]))
            return false;
    return note_arrivals(run, queue, messages, count);
}

/* -- begin and end ---------------------------------------------------------------------------- */

bool run_open(Run *run, Store *store, int64_t wrote, int64_t limit, PyObject *store_ms,
              int64_t body_bytes_max) {
    run->store = store;
    run->start = run->wrote = wrote;
    run->limit = limit;
    run->store_ms = store_ms;
    run->body_bytes_max = body_bytes_max;
    store->records.size = store->stored.size = store->entries.size = 0;
    store->is_busy = true;
    store->run_count++;
    if (store->has_gone)
        forget_queues(store);
    store->has_gone = false;
    if (!make_room(store))
        return PyErr_NoMemory(), false;
    run->arrivals = PyList_New(0);
    return run->arrivals != NULL;
}

void run_close(Run *run) {
    run->store->is_busy = false;
    Py_CLEAR(run->arrivals);
}

/* Put the units of all messages into `units`, queue by queue; false without memory. */
static bool sort_units(const Run *run, Buffer *units) {
    uint8_t *next[QUEUES_MAX];
    units->size = 0;
    for (size_t i = 0; i < run->queue_count; i++) {
        if (buffer_room(units, run->queues[i].count * UNIT_BYTES) == NULL)
            return false;
        units->size += run->queues[i].count * UNIT_BYTES;
    }
    uint8_t *at = units->bytes;
    for (size_t i = 0; i < run->queue_count; i++) {
        next[i] = at;
        at += run->queues[i].count * UNIT_BYTES;
    }
    Cursor cursor = cursor_of(buffer_span(&run->store->stored));
    const uint8_t *stored;
    while ((stored = read_bytes(&cursor, sizeof(StoredMessage))) != NULL) {
        StoredMessage message;
        memcpy(&message, stored, sizeof message);
        uint8_t *unit = next[message.queue_number];
        store_u64(unit, (uint64_t)message.position);
        store_u32(unit + 8, message.size);
        store_u64(unit + 12, (uint64_t)message.tags_code);
        next[message.queue_number] += UNIT_BYTES;
    }
    return true;
}

PyObject *run_result(const Run *run) {
    Buffer *units = &run->store->units;
    if (!sort_units(run, units))
        return PyErr_NoMemory();
    PyObject *queues = PyList_New(0);
    Cursor cursor = cursor_of(buffer_span(units));
    for (size_t i = 0; queues != NULL && i < run->queue_count; i++) {
        const RunQueue *queue = &run->queues[i];
        Py_ssize_t size = (Py_ssize_t)(queue->count * UNIT_BYTES);
        const char *queue_units = (const char *)read_bytes(&cursor, (size_t)size);
        PyObject *fields = size == 0 ? NULL : PyTuple_New(4);
        if (size != 0 &&
            !(append_new(queues, fields) && set_item(fields, 0, Py_NewRef(queue->queue)) &&
              set_item(fields, 1, PyBytes_FromStringAndSize(queue_units, size)) &&
              set_number(fields, 2, queue->next_offset) &&
              set_number(fields, 3, queue->first_position)))
            Py_CLEAR(queues);
    }
    if (queues == NULL)
        return NULL;
    return Py_BuildValue("(NNNO)", buffer_bytes(&run->store->records), queues, entries_of(run),
                         run->arrivals);
}
