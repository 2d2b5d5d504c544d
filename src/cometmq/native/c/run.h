/* A run: messages on their way into the log, the queues and the index of a store.
 *
 * Nothing here changes a store: what a run returns, `Appender.append_encoded` puts into it.  So a
 * run has no effect before all of it is encoded.
 */
#ifndef COMETMQ_RUN_H
#define COMETMQ_RUN_H

#include "core.h"

#include "message_keys.h"

enum {
    RECORD_HEAD_BYTES = 88,
    ORIGIN_BYTES = 36,
    PROPERTIES_BYTES_MAX = 32767,
    /* More queues than this in one run end it. */
    QUEUES_MAX = 64,
    /* Index entries of one message. */
    INDEX_KEYS_MAX = 32,
};

/* A queue of the store that a run has looked up. */
typedef struct {
    uint32_t hash;
    int32_t queue_id;
    /* Hash of "topic#", with which the index hashes of its keys begin. */
    uint32_t key_prefix;
    uint32_t magic;
    PyObject *topic;
    /* NULL: this slot of the table is free. */
    PyObject *queue;
    /* What names the topic in a record; its end is the topic. */
    PyObject *topic_part;
    Span topic_part_bytes, topic_bytes;
    /* The last run that it was part of, and which of its queues it was. */
    uint64_t run_number;
    size_t index;
    /* What the owner of the table has found out about it; 0: nothing. */
    int64_t note;
} KnownQueue;

/* What the core knows of a store. */
typedef struct {
    /* The store's queues: topic, then queue id. */
    PyObject *topics;
    /* The class of a queue that is not held. */
    PyObject *queue_type;
    PyObject *max_name, *magic_name, *topic_part_name, *is_watched_name, *is_gone_name;
    /* A hash table of queues, so that a run does not look them up in the dictionaries. */
    KnownQueue *known;
    size_t known_capacity, known_count;
    /* One of them is no longer in the store: the next run begins without them. */
    bool has_gone;
    uint64_t run_count;
    int is_indexed;
    /* SYNC_FLUSH: messages become visible after their flush. */
    int is_sync;
    /* What a run needs for a moment, kept between runs. */
    Buffer records, stored, units, entries;
    bool is_busy;
} Store;

/* A queue of a run; the store's table has the objects. */
typedef struct {
    Span topic_bytes, topic_part_bytes;
    PyObject *topic;
    PyObject *queue;
    int64_t *note;
    int32_t queue_id;
    uint32_t magic, key_prefix;
    bool is_watched;
    int64_t next_offset;
    int64_t first_position;
    size_t count;
} RunQueue;

/* A message that passed every check of the core, on its way into the records. */
typedef struct {
    Span body, properties;
    /* Properties that the broker adds behind them. */
    Span added;
    /* Hosts, store time, try count, prepared offset: ORIGIN_BYTES. */
    Span origin;
    int32_t flag;
    uint32_t sys_flag;
    int64_t born_ms;
    uint32_t size;
    int64_t tags_code;
    int hash_count;
    uint32_t hashes[INDEX_KEYS_MAX];
} Message;

typedef struct {
    Store *store;
    /* Physical offsets of the first record and of the next one, and where the log file ends. */
    int64_t start, wrote, limit;
    int64_t body_bytes_max;
    PyObject *store_ms;
    RunQueue queues[QUEUES_MAX];
    size_t queue_count;
    PyObject *arrivals;
} Run;

/* Take over what a store has; false with an exception. */
bool store_open(Store *store, PyObject *topics, PyObject *queue_type);
int store_traverse(Store *store, visitproc visit, void *arg);
void store_clear(Store *store);
void store_free(Store *store);

/* Begin a run at the physical offset `wrote`, in a log file that ends at `limit`; false with an
 * exception.  `run_close` ends it, whatever happened. */
bool run_open(Run *run, Store *store, int64_t wrote, int64_t limit, PyObject *store_ms,
              int64_t body_bytes_max);
void run_close(Run *run);

/* Find a queue of the run, else of the store; 1: done, 0: stop, -1: an exception.  The topic is
 * ASCII. */
int find_queue(Run *run, Span topic, int32_t queue_id, RunQueue **found);

/* Find out size, tags code and index hashes of a message; false where it is too long, or has more
 * keys than fit. */
bool measure_message(const Run *run, const RunQueue *queue, const MessageKeys *keys,
                     Message *message);

/* Whether the log file has room for messages. */
bool has_room(const Run *run, const Message *messages, size_t count);

/* Add messages to a queue, for which there is room; false with an exception. */
bool add_messages(Run *run, RunQueue *queue, const Message *messages, size_t count);

/* (records, queues, index entries, arrivals).  Of each queue: queue, units, next queue offset, first
 * position.  The index entries, None without an index, have number of messages, first position, store
 * time and bytes; index_keys.c reads them. */
PyObject *run_result(const Run *run);

#endif
