/* Bytes in and bytes out: a cursor that cannot leave its bytes, and a buffer that grows.
 *
 * Whatever comes from the network or from a file is read through a Cursor, and only this file
 * compares an address with an end (tests/unit/native/test_compilers.py).  A read that would leave the
 * bytes returns false, NULL or -1, and the caller stops.
 */
#ifndef COMETMQ_BYTES_H
#define COMETMQ_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of somebody else, with their number. */
typedef struct {
    const uint8_t *start;
    size_t size;
} Span;

/* The unread rest of some bytes. */
typedef struct {
    const uint8_t *next;
    const uint8_t *end;
} Cursor;

static inline Cursor cursor_of(Span span) {
    /* C has no sum of NULL and a number, be it 0. */
    return (Cursor){span.start, span.size == 0 ? span.start : span.start + span.size};
}

static inline size_t bytes_left(const Cursor *cursor) {
    return (size_t)(cursor->end - cursor->next);
}

/* The next `size` bytes, which are then read; NULL where fewer are left. */
static inline const uint8_t *read_bytes(Cursor *cursor, size_t size) {
    if (size > bytes_left(cursor))
        return NULL;
    const uint8_t *bytes = cursor->next;
    cursor->next += size;
    return bytes;
}

/* The next byte, unread; -1 at the end. */
static inline int peek_byte(const Cursor *cursor) {
    return cursor->next < cursor->end ? *cursor->next : -1;
}

/* The next byte, which is then read; -1 at the end. */
static inline int take_byte(Cursor *cursor) {
    return cursor->next < cursor->end ? *cursor->next++ : -1;
}

/* The byte in front of the next one; -1 at the start of all the bytes. */
static inline int byte_before(Cursor cursor, Span all) {
    return cursor.next > all.start ? cursor.next[-1] : -1;
}

/* Read one byte if it is the wanted one. */
static inline bool read_byte(Cursor *cursor, uint8_t wanted) {
    bool is_next = peek_byte(cursor) == wanted;
    cursor->next += is_next;
    return is_next;
}

/* Read a text if it comes next. */
static inline bool read_text(Cursor *cursor, const char *text, size_t size) {
    if (size > bytes_left(cursor) || memcmp(cursor->next, text, size) != 0)
        return false;
    cursor->next += size;
    return true;
}

/* What was read between two positions. */
static inline Span span_between(Cursor from, Cursor to) {
    return (Span){from.next, (size_t)(to.next - from.next)};
}

/* Read the bytes before a byte, and that byte; false where it does not come. */
static inline bool read_until(Cursor *cursor, uint8_t last, Span *before) {
    size_t left = bytes_left(cursor);
    const uint8_t *at = left == 0 ? NULL : memchr(cursor->next, last, left);
    if (at == NULL)
        return false;
    *before = (Span){cursor->next, (size_t)(at - cursor->next)};
    cursor->next = at + 1;
    return true;
}

/* All that is left, which is then read. */
static inline Span read_rest(Cursor *cursor) {
    Span rest = {cursor->next, bytes_left(cursor)};
    cursor->next = cursor->end;
    return rest;
}

/* Read the next word of text in which spaces separate words; false behind the last one. */
static inline bool read_word(Cursor *cursor, Span *word) {
    while (read_byte(cursor, ' '))
        continue;
    if (!read_until(cursor, ' ', word))
        *word = read_rest(cursor);
    return word->size != 0;
}

/* Read the bytes before the next 0x01 or 0x02, and that byte, which is returned; without one, all
 * that is left, and -1.  The bits of all the bytes before it are added to `bits`. */
static inline int read_to_separator(Cursor *cursor, Span *before, uint64_t *bits) {
    /* Eight bytes at a time: bit 7 of a byte of `marks` is set where the byte is 1 or 2. */
    static const uint64_t LOW = 0x7F7F7F7F7F7F7F7Fu, ABOVE_2 = 0x7D7D7D7D7D7D7D7Du;
    const uint8_t *start = cursor->next, *at = start;
    uint64_t seen = *bits;
    while (cursor->end - at >= 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        uint64_t low = word & LOW, marks = (low + LOW) & ~(low + ABOVE_2) & ~word & ~LOW;
        if (marks != 0) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            int before_it = __builtin_ctzll(marks) / 8;
            seen |= word & ~(~(uint64_t)0 << 8 * before_it);
            at += before_it;
#endif
            break;
        }
        seen |= word;
        at += 8;
    }
    while (at < cursor->end && *at != 1 && *at != 2)
        seen |= *at++;
    *bits = seen;
    *before = (Span){start, (size_t)(at - start)};
    cursor->next = at;
    return take_byte(cursor);
}

/* Ask the processor for bytes that will be read soon; the first 512 of them at most.
 *
 * GCC takes a function without an effect on values for one without any effect and leaves its calls
 * out, unless it is inlined first. */
__attribute__((always_inline)) static inline void prefetch(Span all, int64_t position, int64_t size) {
    enum { LINE_BYTES = 64, LINES_MAX = 8 };
    if (position < 0 || size < 0 || (uint64_t)position > all.size ||
        (uint64_t)size > all.size - (uint64_t)position)
        return;
    const uint8_t *at = all.start + position;
    int64_t lines = (size + LINE_BYTES - 1) / LINE_BYTES;
    for (int64_t i = 0; i < lines && i < LINES_MAX; i++)
        __builtin_prefetch(at + i * LINE_BYTES);
}

static inline uint16_t load_u16(const uint8_t *at) {
    return (uint16_t)(at[0] << 8 | at[1]);
}

static inline uint32_t load_u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint64_t load_u64(const uint8_t *at) {
    return (uint64_t)load_u32(at) << 32 | load_u32(at + 4);
}

static inline bool read_u16(Cursor *cursor, uint16_t *value) {
    const uint8_t *at = read_bytes(cursor, 2);
    if (at != NULL)
        *value = load_u16(at);
    return at != NULL;
}

static inline bool read_u32(Cursor *cursor, uint32_t *value) {
    const uint8_t *at = read_bytes(cursor, 4);
    if (at != NULL)
        *value = load_u32(at);
    return at != NULL;
}

static inline bool read_u64(Cursor *cursor, uint64_t *value) {
    const uint8_t *at = read_bytes(cursor, 8);
    if (at != NULL)
        *value = load_u64(at);
    return at != NULL;
}

/* Read the next `size` bytes as a span; false where fewer are left. */
static inline bool read_span(Cursor *cursor, size_t size, Span *span) {
    const uint8_t *at = read_bytes(cursor, size);
    *span = (Span){at, size};
    return at != NULL;
}

/* One of many 64-bit numbers in this machine's byte order. */
static inline int64_t number_at(Span numbers, size_t index) {
    int64_t number;
    memcpy(&number, numbers.start + index * sizeof number, sizeof number);
    return number;
}

static inline void store_u16(uint8_t *at, uint16_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static inline void store_u32(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 24);
    at[1] = (uint8_t)(value >> 16);
    at[2] = (uint8_t)(value >> 8);
    at[3] = (uint8_t)value;
}

static inline void store_u64(uint8_t *at, uint64_t value) {
    store_u32(at, (uint32_t)(value >> 32));
    store_u32(at + 4, (uint32_t)value);
}

/* Write bytes and return where the next ones go. */
static inline uint8_t *put_bytes(uint8_t *at, const void *bytes, size_t size) {
    if (size != 0)
        memcpy(at, bytes, size);
    return at + size;
}

static inline uint8_t *put_span(uint8_t *at, Span span) {
    return put_bytes(at, span.start, span.size);
}

/* Write a decimal number, which has 20 characters at most. */
static inline uint8_t *put_number(uint8_t *at, int64_t number) {
    uint8_t digits[20];
    int count = 0;
    uint64_t value = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do
        digits[count++] = (uint8_t)('0' + value % 10);
    while ((value /= 10) != 0);
    if (number < 0)
        *at++ = '-';
    while (count > 0)
        *at++ = digits[--count];
    return at;
}

static inline bool is_equal(Span span, const void *bytes, size_t size) {
    return span.size == size && memcmp(span.start, bytes, size) == 0;
}

static inline bool ends_with(Span span, uint8_t byte) {
    return span.size != 0 && span.start[span.size - 1] == byte;
}

static inline bool is_ascii(Span text) {
    uint8_t all = 0;
    for (size_t i = 0; i < text.size; i++)
        all |= text.start[i];
    return all < 0x80;
}

/* Bytes that are being written. */
typedef struct {
    uint8_t *bytes;
    size_t size;
    size_t capacity;
} Buffer;

/* Make room for `size` more bytes and return where they go; NULL without memory. */
static inline uint8_t *buffer_room(Buffer *buffer, size_t size) {
    if (buffer->bytes == NULL || size > buffer->capacity - buffer->size) {
        size_t capacity = buffer->capacity < 4096 ? 4096 : buffer->capacity;
        while (size > capacity - buffer->size) {
            if (capacity > SIZE_MAX / 2)
                return NULL;
            capacity *= 2;
        }
        uint8_t *bytes = realloc(buffer->bytes, capacity);
        if (bytes == NULL)
            return NULL;
        buffer->bytes = bytes;
        buffer->capacity = capacity;
    }
    return buffer->bytes + buffer->size;
}

/* Add bytes; false without memory. */
static inline bool buffer_add(Buffer *buffer, const void *bytes, size_t size) {
    uint8_t *room = buffer_room(buffer, size);
    if (room == NULL)
        return false;
    if (size != 0)
        memcpy(room, bytes, size);
    buffer->size += size;
    return true;
}

static inline Span buffer_span(const Buffer *buffer) {
    return (Span){buffer->bytes, buffer->size};
}

static inline void buffer_free(Buffer *buffer) {
    free(buffer->bytes);
    *buffer = (Buffer){0};
}

#endif
