/* Heads of answers of pulls. */
#ifndef COMETMQ_PULL_ANSWER_H
#define COMETMQ_PULL_ANSWER_H

#include "core.h"

/* What differs between the answers of a consumer that found messages. */
typedef struct {
    int32_t opaque;
    int64_t next_offset, min_offset, max_offset, body_bytes;
} PullAnswer;

/* Write the head of a frame from its constant parts (wire/header/fast_encode.py, pull_parts); 1:
 * done, 0: the frame would be too long, -1: an exception. */
int put_pull_head(Buffer *head, PyObject *parts, const PullAnswer *answer);

#endif
