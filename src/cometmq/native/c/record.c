#include "record.h"

#include "hash.h"

static const uint32_t MAGIC_V1 = 0xDAA320A7u, MAGIC_V2 = 0xDAA320ABu;

enum {
    RECORD_BYTES_MIN = 91,
    HOST_V4_BYTES = 8,
    HOST_V6_BYTES = 20,
    TOPIC_BYTES_MAX_V1 = 127,
    /* Lengths of two bytes are signed in Java. */
    SHORT_MAX = 32767,
};

static bool read_i32(Cursor *cursor, int32_t *value) {
    uint32_t bits;
    bool is_read = read_u32(cursor, &bits);
    if (is_read)
        *value = (int32_t)bits;
    return is_read;
}

static bool read_i64(Cursor *cursor, int64_t *value) {
    uint64_t bits;
    bool is_read = read_u64(cursor, &bits);
    if (is_read)
        *value = (int64_t)bits;
    return is_read;
}

static bool read_host(Cursor *cursor, bool is_v6, Span *host) {
    return read_span(cursor, is_v6 ? HOST_V6_BYTES : HOST_V4_BYTES, host);
}

static bool read_topic(Cursor *cursor, bool is_v1, Span *topic) {
    if (is_v1) {
        int size = take_byte(cursor);
        return size >= 0 && size <= TOPIC_BYTES_MAX_V1 && read_span(cursor, (size_t)size, topic);
    }
    uint16_t size;
    return read_u16(cursor, &size) && size <= SHORT_MAX && read_span(cursor, size, topic);
}

bool read_record(Cursor *cursor, Record *record) {
    Cursor rest = *cursor;
    uint32_t size, magic, body_bytes;
    uint16_t properties_bytes;
    if (!read_u32(&rest, &size) || size < RECORD_BYTES_MIN || size > INT32_MAX)
        return false;
    Cursor behind = *cursor;
    if (!read_span(&behind, size, &record->bytes))
        return false;
    rest = cursor_of(record->bytes);
    bool is_whole =
        read_u32(&rest, &size) && read_u32(&rest, &magic) &&
        (magic == MAGIC_V1 || magic == MAGIC_V2) && read_u32(&rest, &record->body_crc) &&
        read_i32(&rest, &record->queue_id) && read_i32(&rest, &record->flag) &&
        read_i64(&rest, &record->queue_offset) && read_i64(&rest, &record->physical_offset) &&
        read_i32(&rest, &record->sys_flag) && read_i64(&rest, &record->born_ms) &&
        read_host(&rest, record->sys_flag & SYS_FLAG_BORN_V6, &record->born_host) &&
        read_i64(&rest, &record->store_ms) &&
        read_host(&rest, record->sys_flag & SYS_FLAG_STORE_V6, &record->store_host) &&
        read_i32(&rest, &record->reconsume_times) && read_i64(&rest, &record->prepared_offset) &&
        read_u32(&rest, &body_bytes) && read_span(&rest, body_bytes, &record->body) &&
        read_topic(&rest, magic == MAGIC_V1, &record->topic) &&
        read_u16(&rest, &properties_bytes) && properties_bytes <= SHORT_MAX &&
        read_span(&rest, properties_bytes, &record->properties) && bytes_left(&rest) == 0;
    if (is_whole)
        *cursor = behind;
    return is_whole;
}

bool has_body_crc(const Record *record) {
    return record->body.size == 0 || (crc32_of(record->body) & 0x7FFFFFFF) == record->body_crc;
}
