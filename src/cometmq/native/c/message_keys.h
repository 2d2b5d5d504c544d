/* What a broker looks up in the property string of every message. */
#ifndef COMETMQ_MESSAGE_KEYS_H
#define COMETMQ_MESSAGE_KEYS_H

#include "bytes.h"

/* The kinds of messages that the core takes. */
typedef enum { PLAIN, DELAYED, TIMED, HALF, NUMBERED } Kind;

typedef struct {
    /* Each without a start: the message has none. */
    Span uniq_key;
    Span keys;
    Span tags;
    /* Of a message that is not plain: the value of the property that makes it one of its kind. */
    Kind kind;
    Span mark;
    /* Of a half message: the group that is asked for the outcome. */
    Span group;
    /* A name has REAL_ in it, as those have that the broker adds to a message that waits. */
    bool has_real;
    /* A name has CHECK_, TRAN_PREPARED or __transactionId__ in it: a half message of its own sort. */
    bool has_check;
    /* Somewhere stands WAIT with a value that begins with false: the producer may not wait. */
    bool has_wait_false;
} MessageKeys;

/* Read the keys of a message.
 *
 * False stops: the message has an empty key, two marks, or a property that makes it a message of
 * a kind that the core does not take.  This is `_parse_plain` and `_parse_kind` of
 * broker/send/kinds.py, and `keys_of_text` of broker/send/batch_keys.py: of two equal names the last
 * one counts. */
bool read_message_keys(Span text, MessageKeys *keys);

/* Find the keys of any stored message, as `index_keys_of` of store/base/dispatch.py: of two equal
 * names the last one with a value counts, and the last property may lack its separator. */
void find_message_keys(Span properties, MessageKeys *keys);

/* An index entry of a run: the hash of its key, and how far behind the run's first record the
 * message's record begins. */
typedef struct {
    uint32_t hash;
    uint32_t distance;
} IndexEntry;

enum { STORED_KEYS_MAX = 32 };

/* Put the hashes of a stored message's index entries into `hashes`, in Java's order; `prefix` is
 * the hash of "topic#".  Return their number, or -1 to stop: at keys that are not ASCII, and where
 * there are more than STORED_KEYS_MAX. */
int hash_stored_keys(uint32_t prefix, const MessageKeys *keys, uint32_t *hashes);

#endif
