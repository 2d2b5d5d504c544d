#include "record.h"

#include "hash.h"

enum {
    HOST_V4_BYTES = 8,
    HOST_V6_BYTES = 20,
    TOPIC_BYTES_MAX_V1 = 127,
    /* Lengths of two bytes are signed in Java. */
    SHORT_MAX = 32767,
    /* Fields of fixed size: in front of the born host, and behind the store host. */
    FRONT_BYTES = 48,
    BACK_BYTES = 16,
};

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

bool read_record_bytes(Cursor *cursor, Span *bytes) {
    Cursor front = *cursor;
    const uint8_t *at = read_bytes(&front, FRONT_BYTES);
    if (at == NULL)
        return false;
    uint32_t size = load_u32(at);
    return size >= RECORD_BYTES_MIN && size <= INT32_MAX && is_record_magic(load_u32(at + 4)) &&
           size <= bytes_left(cursor) && read_span(cursor, size, bytes);
}

int64_t queue_offset_of(Span record_bytes) {
    Cursor cursor = cursor_of(record_bytes);
    const uint8_t *front = read_bytes(&cursor, FRONT_BYTES);
    return front == NULL ? -1 : (int64_t)load_u64(front + 20);
}

bool read_record(Cursor *cursor, Record *record) {
    Cursor behind = *cursor;
    if (!read_record_bytes(&behind, &record->bytes))
        return false;
    Cursor rest = cursor_of(record->bytes);
    const uint8_t *front = read_bytes(&rest, FRONT_BYTES);
    if (front == NULL)
        return false;
    record->magic = load_u32(front + 4);
    record->body_crc = load_u32(front + 8);
    record->queue_id = (int32_t)load_u32(front + 12);
    record->flag = (int32_t)load_u32(front + 16);
    record->queue_offset = (int64_t)load_u64(front + 20);
    record->physical_offset = (int64_t)load_u64(front + 28);
    record->sys_flag = (int32_t)load_u32(front + 36);
    record->born_ms = (int64_t)load_u64(front + 40);

    const uint8_t *store_time, *back;
    if (!read_host(&rest, record->sys_flag & SYS_FLAG_BORN_V6, &record->born_host) ||
        (store_time = read_bytes(&rest, sizeof(int64_t))) == NULL ||
        !read_host(&rest, record->sys_flag & SYS_FLAG_STORE_V6, &record->store_host) ||
        (back = read_bytes(&rest, BACK_BYTES)) == NULL)
        return false;
    record->store_ms = (int64_t)load_u64(store_time);
    record->reconsume_times = (int32_t)load_u32(back);
    record->prepared_offset = (int64_t)load_u64(back + 4);

    uint16_t properties_bytes;
    if (!read_span(&rest, load_u32(back + 12), &record->body) ||
        !read_topic(&rest, record->magic == MAGIC_V1, &record->topic) ||
        !read_u16(&rest, &properties_bytes) || properties_bytes > SHORT_MAX ||
        !read_span(&rest, properties_bytes, &record->properties) || bytes_left(&rest) != 0)
        return false;
    *cursor = behind;
    return true;
}

bool has_body_crc(const Record *record) {
    return record->body.size == 0 || (crc32_of(record->body) & 0x7FFFFFFF) == record->body_crc;
}
