/* What a broker looks up in the property string of every message. */
#ifndef COMETMQ_MESSAGE_KEYS_H
#define COMETMQ_MESSAGE_KEYS_H

#include "bytes.h"

typedef struct {
    /* Each without a start: the message has none. */
    Span uniq_key;
    Span keys;
    Span tags;
    /* The value of DELAY, which makes the message a delayed one. */
    bool is_marked;
    Span delay;
    /* A name has REAL_ in it, as those have that the broker adds to a message that waits. */
    bool has_real;
    /* Somewhere stands WAIT with a value that begins with false: the producer may not wait. */
    bool has_wait_false;
} MessageKeys;

/* Read the keys of a plain or a delayed message.
 *
 * False stops: the message has an empty key, a mark twice, or a property that makes it a message of
 * a kind that the core does not take.  This is `_parse_plain` and `_parse_kind` of
 * broker/send/kinds.py, and `keys_of_text` of broker/send/batch_keys.py: of two equal names the last
 * one counts. */
bool read_message_keys(Span text, MessageKeys *keys);

#endif
