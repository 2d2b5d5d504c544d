/* Answers of sends. */
#ifndef COMETMQ_SEND_ANSWERS_H
#define COMETMQ_SEND_ANSWERS_H

#include "run.h"
#include "send_header.h"

/* Constant parts of answers: JSON before and behind the fields, binary likewise, and how message
 * ids begin: the store host in hex. */
typedef struct {
    Buffer json_start, json_middle, json_end, binary_start, binary_end, id_start;
} AnswerParts;

/* Where the messages of a send are stored. */
typedef struct {
    const Message *messages;
    size_t count;
    int64_t position;
    int64_t queue_offset;
    /* Without a start: a batch without an id. */
    Span uniq_key;
    /* The recall handle of a timed message; without a start: none. */
    Span handle;
} Answer;

/* Add the padded URL-safe base64 of a text; false without memory. */
bool add_base64(Buffer *buffer, Span text);

/* Add the answer of a send that will be stored; false without memory. */
bool add_answer(Buffer *answers, const AnswerParts *parts, const SendHeader *send,
                const Answer *answer);

#endif
