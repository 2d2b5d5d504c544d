#include "message_keys.h"

enum { SEPARATOR = 2 };

static inline bool begins_with(Cursor cursor, const char *word, size_t size) {
    return read_text(&cursor, word, size);
}

#define BEGINS_WITH(word) begins_with(cursor, word, sizeof(word) - 1)

/* Read the value behind a name of `name_bytes` bytes, if there is the name; false where it is the
 * end of a longer one, or where the value is empty. */
static bool read_value(Cursor name, size_t name_bytes, Span text, Span *value) {
    if (bytes_left(&name) == 0)
        return true;
    int before = byte_before(name, text);
    read_bytes(&name, name_bytes);
    if (!read_until(&name, SEPARATOR, value))
        *value = read_rest(&name);
    return (before < 0 || before == SEPARATOR) && value->size != 0;
}

bool read_message_keys(Span text, MessageKeys *keys) {
    /* Where each name is last; empty: nowhere. */
    Cursor uniq_key = {0}, names = {0}, tags = {0}, delay = {0};
    *keys = (MessageKeys){0};
    for (Cursor cursor = cursor_of(text); bytes_left(&cursor) != 0; take_byte(&cursor)) {
        switch (peek_byte(&cursor)) {
        case 'U':
            if (BEGINS_WITH("UNIQ_KEY\x01"))
                uniq_key = cursor;
            break;
        case 'K':
            if (BEGINS_WITH("KEYS\x01"))
                names = cursor;
            break;
        case 'R':
            keys->has_real |= BEGINS_WITH("REAL_");
            break;
        case 'T':
            if (BEGINS_WITH("TAGS\x01"))
                tags = cursor;
            else if (BEGINS_WITH("TRAN_MSG") || BEGINS_WITH("TIMER_"))
                return false;
            break;
        case 'D':
            if (BEGINS_WITH("DELAY\x01") && !keys->is_marked) {
                keys->is_marked = true;
                delay = cursor;
            } else if (BEGINS_WITH("DELAY")) {
                return false;
            }
            break;
        case 'P':
            if (BEGINS_WITH("POP_CK"))
                return false;
            break;
        case 'W':
            if (BEGINS_WITH("WAIT\x01" "false"))
                keys->has_wait_false = true;
            break;
        default:
            break;
        }
    }
    return read_value(uniq_key, 9, text, &keys->uniq_key) &&
           read_value(names, 5, text, &keys->keys) && read_value(tags, 5, text, &keys->tags) &&
           read_value(delay, 6, text, &keys->delay);
}
