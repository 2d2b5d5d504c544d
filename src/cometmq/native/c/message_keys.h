/* What a broker looks up in the property string of every message. */
#ifndef COMETMQ_MESSAGE_KEYS_H
#define COMETMQ_MESSAGE_KEYS_H

#include "bytes.h"

typedef struct {
    Span uniq_key;
    /* Without a start: the message has none. */
    Span keys;
    Span tags;
} MessageKeys;

/* Read the keys of a plain message.
 *
 * `text` ends with a separator.  False stops: the message has no UNIQ_KEY, an empty key, or a
 * property that makes it another kind of message.  This is `_parse_plain` of
 * broker/send/kinds.py: of two equal names the last one counts. */
bool read_message_keys(Span text, MessageKeys *keys);

#endif
