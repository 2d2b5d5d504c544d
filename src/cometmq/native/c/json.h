/* The parts of a JSON header in their plain form (docs/internals/protocol.md#json-header). */
#ifndef COMETMQ_JSON_H
#define COMETMQ_JSON_H

#include "bytes.h"

/* Read a decimal number in its only plain form: no sign but a minus, no zeros in front. */
static inline bool read_number(Cursor *cursor, int64_t *number) {
    bool is_negative = read_byte(cursor, '-');
    int first = peek_byte(cursor), count = 0;
    int64_t value = 0;
    for (int digit; (digit = peek_byte(cursor)) >= '0' && digit <= '9'; count++) {
        if (count == 18)
            return false;
        value = value * 10 + (digit - '0');
        take_byte(cursor);
    }
    if (count == 0 || (first == '0' && (count > 1 || is_negative)))
        return false;
    *number = is_negative ? -value : value;
    return true;
}

static inline bool read_int32(Cursor *cursor, int32_t *number) {
    int64_t value;
    if (!read_number(cursor, &value) || value < INT32_MIN || value > INT32_MAX)
        return false;
    *number = (int32_t)value;
    return true;
}

/* Read a string of ASCII without escapes. */
static inline bool read_plain_string(Cursor *cursor, Span *text) {
    const Cursor start = *cursor;
    Cursor at = start;
    if (take_byte(&at) != '"')
        return false;
    int byte;
    do
        byte = take_byte(&at);
    while (byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\');
    *cursor = at;
    *text = span_between(start, at);
    text->start++;
    text->size -= 2;
    return byte == '"';
}

/* Skip a value of the header that does not matter: a plain string, a number, true, false, null. */
static inline bool skip_scalar(Cursor *cursor) {
    Span ignored;
    if (peek_byte(cursor) == '"')
        return read_plain_string(cursor, &ignored);
    const Cursor start = *cursor;
    int64_t number;
    if (read_number(cursor, &number))
        return true;
    *cursor = start;
    static const char *const words[] = {"null", "true", "false"};
    for (int i = 0; i < 3; i++)
        if (read_text(cursor, words[i], strlen(words[i])))
            return true;
    return false;
}

#endif
