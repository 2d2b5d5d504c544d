/* The frame of a pull, read where it is plain.
 *
 * Plain is what clients write: PULL_MESSAGE (11) or LITE_PULL_MESSAGE (361) with an answer, with a
 * JSON header without spaces or with a binary one, in ASCII, its fields in any order.  Reading
 * stops (false) at anything else; the Python decoders then accept or refuse it.
 */
#ifndef COMETMQ_PULL_HEADER_H
#define COMETMQ_PULL_HEADER_H

#include "bytes.h"

/* Fields on which the checks of a pull depend: they are the same in the pulls of one consumer from
 * one queue. */
enum {
    PULL_GROUP,
    PULL_TOPIC,
    PULL_SUBSCRIPTION,
    PULL_EXPRESSION_TYPE,
    PULL_QUEUE_ID,
    PULL_SYS_FLAG,
    PULL_SUB_VERSION,
    PULL_CHECKED_FIELDS,
};

typedef struct {
    uint8_t serialize_type;
    int32_t code;
    int32_t opaque;
    /* The text of each field; its start is NULL where the pull has none. */
    Span checked[PULL_CHECKED_FIELDS];
    int64_t queue_offset, commit_offset, suspend_ms;
    int32_t max_count;
    /* 0 where the pull has none. */
    int32_t max_bytes;
} PullHeader;

/* Read a frame. */
bool read_pull(Cursor *cursor, PullHeader *pull);

#endif
