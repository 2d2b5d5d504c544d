/* A stored message: a record of the commit log and of a pull answer. */
#ifndef COMETMQ_RECORD_H
#define COMETMQ_RECORD_H

#include "bytes.h"

enum {
    RECORD_BYTES_MIN = 91,
    SYS_FLAG_COMPRESSED = 0x1,
    SYS_FLAG_PREPARED = 0x4,
    SYS_FLAG_COMMIT = 0x8,
    SYS_FLAG_TRANSACTION = 0xC,
    SYS_FLAG_BORN_V6 = 0x10,
    SYS_FLAG_STORE_V6 = 0x20,
    SYS_FLAG_ANY_V6 = SYS_FLAG_BORN_V6 | SYS_FLAG_STORE_V6,
};

static const uint32_t MAGIC_V1 = 0xDAA320A7u, MAGIC_V2 = 0xDAA320ABu;

typedef struct {
    Span bytes;
    uint32_t magic, body_crc;
    int32_t queue_id, flag, sys_flag, reconsume_times;
    int64_t queue_offset, physical_offset, born_ms, store_ms, prepared_offset;
    Span born_host, store_host, body, topic, properties;
} Record;

/* Whether this is the magic number of a record, of version 1 or 2. */
static inline bool is_record_magic(uint32_t magic) {
    return magic == MAGIC_V1 || magic == MAGIC_V2;
}

/* Read the bytes of a record of version 1 or 2, as long as they state; false where fewer are left,
 * and the cursor stays.  Nothing behind size and magic is looked at. */
bool read_record_bytes(Cursor *cursor, Span *bytes);

/* Read a record, with its layout as in codec/stored_message.py.
 *
 * False stops, and the cursor stays: the bytes are no whole record of version 1 or 2, or their
 * inner lengths do not add up to the record's size.  No CRC is compared. */
bool read_record(Cursor *cursor, Record *record);

/* The queue offset that the bytes of a record state. */
int64_t queue_offset_of(Span record_bytes);

/* Whether the body has the CRC that the record states.  An empty body is not checked, as in Java. */
bool has_body_crc(const Record *record);

#endif
