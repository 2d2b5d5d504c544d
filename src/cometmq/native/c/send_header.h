/* The frame of a send, read where it is plain.
 *
 * Plain is what clients write: SEND_MESSAGE (10) under its long names, SEND_MESSAGE_V2 (310) or
 * SEND_BATCH_MESSAGE (320) under its letters, with a JSON header without spaces or with a binary
 * one, in ASCII.  Reading stops (false) at anything else; the Python decoders then accept or refuse
 * it.
 */
#ifndef COMETMQ_SEND_HEADER_H
#define COMETMQ_SEND_HEADER_H

#include "bytes.h"

enum { SERIALIZE_JSON = 0, SERIALIZE_BINARY = 1 };

typedef struct {
    uint8_t serialize_type;
    int32_t opaque;
    bool is_oneway;
    /* The body is a packed batch. */
    bool is_batch;
    Span topic;
    int32_t queue_id;
    int32_t sys_flag;
    int64_t born_ms;
    int32_t flag;
    /* The property string; of a JSON header it lies in the buffer given to read_send_header. */
    Span properties;
    bool has_group_home;
} SendHeader;

/* Read a frame; `text` gets what has to be unescaped, and lives as long as `send` is used. */
bool read_send(Cursor *cursor, Buffer *text, SendHeader *send, Span *body);

#endif
