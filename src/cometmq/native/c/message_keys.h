/* What a broker looks up in the property string of every message. */
#ifndef COMETMQ_MESSAGE_KEYS_H
#define COMETMQ_MESSAGE_KEYS_H

#include "bytes.h"

typedef struct {
    /* Each without a start: the message has none. */
    Span uniq_key;
    Span keys;
    Span tags;
    /* Somewhere stands WAIT with a value that begins with false: the producer may not wait. */
    bool has_wait_false;
} MessageKeys;

/* Read the keys of a plain message.
 *
 * False stops: the message has an empty key, or a property that makes it another kind of message.
 * This is `_parse_plain` of broker/send/kinds.py, and `keys_of_text` of broker/send/batch_keys.py:
 * of two equal names the last one counts. */
bool read_message_keys(Span text, MessageKeys *keys);

#endif
