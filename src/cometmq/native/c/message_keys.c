#include "message_keys.h"

#include "hash.h"

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

/* Note the property that makes a message one of a kind; false where there is one already. */
static bool mark(MessageKeys *keys, Kind kind, Cursor *place, Cursor at) {
    bool is_first = keys->kind == PLAIN;
    keys->kind = kind;
    *place = at;
    return is_first;
}

bool read_message_keys(Span text, MessageKeys *keys) {
    /* Where each name is last; empty: nowhere. */
    Cursor uniq_key = {0}, names = {0}, tags = {0}, group = {0}, kind = {0};
    *keys = (MessageKeys){0};
    for (Cursor cursor = cursor_of(text); bytes_left(&cursor) != 0; take_byte(&cursor)) {
        bool is_taken = true;
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
            else if (BEGINS_WITH("TRAN_MSG\x01"))
                is_taken = mark(keys, HALF, &kind, cursor);
            else if (BEGINS_WITH("TIMER_DELIVER_MS\x01"))
                is_taken = mark(keys, TIMED, &kind, cursor);
            else if (BEGINS_WITH("TRAN_MSG") || BEGINS_WITH("TIMER_"))
                is_taken = false;
            else
                keys->has_check |= BEGINS_WITH("TRAN_PREPARED");
            break;
        case 'D':
            if (BEGINS_WITH("DELAY\x01"))
                is_taken = mark(keys, DELAYED, &kind, cursor);
            else
                is_taken = !BEGINS_WITH("DELAY");
            break;
        case 'P':
            if (BEGINS_WITH("PGROUP\x01"))
                group = cursor;
            else if (BEGINS_WITH("PRODUCER_SEQ\x01"))
                is_taken = mark(keys, NUMBERED, &kind, cursor);
            else
                is_taken = !BEGINS_WITH("POP_CK") && !BEGINS_WITH("PRODUCER_SEQ");
            break;
        case 'C':
            keys->has_check |= BEGINS_WITH("CHECK_");
            break;
        case '_':
            keys->has_check |= BEGINS_WITH("__transactionId__");
            break;
        case 'W':
            keys->has_wait_false |= BEGINS_WITH("WAIT\x01" "false");
            break;
        default:
            break;
        }
        if (!is_taken)
            return false;
    }
    static const size_t mark_bytes[] = {[DELAYED] = sizeof "DELAY",
                                        [TIMED] = sizeof "TIMER_DELIVER_MS",
                                        [HALF] = sizeof "TRAN_MSG",
                                        [NUMBERED] = sizeof "PRODUCER_SEQ"};
    return read_value(uniq_key, 9, text, &keys->uniq_key) &&
           read_value(names, 5, text, &keys->keys) && read_value(tags, 5, text, &keys->tags) &&
           (keys->kind == PLAIN || read_value(kind, mark_bytes[keys->kind], text, &keys->mark)) &&
           (keys->kind != HALF || read_value(group, 7, text, &keys->group));
}

void find_message_keys(Span properties, MessageKeys *keys) {
    *keys = (MessageKeys){0};
    Cursor cursor = cursor_of(properties);
    while (bytes_left(&cursor) != 0) {
        Span property;
        if (!read_until(&cursor, SEPARATOR, &property))
            property = read_rest(&cursor);
        Cursor rest = cursor_of(property);
        Span *value = NULL;
        if (read_text(&rest, "UNIQ_KEY\x01", 9))
            value = &keys->uniq_key;
        else if (read_text(&rest, "KEYS\x01", 5))
            value = &keys->keys;
        else if (read_text(&rest, "TAGS\x01", 5))
            value = &keys->tags;
        if (value != NULL && bytes_left(&rest) != 0)
            *value = read_rest(&rest);
    }
}

int hash_stored_keys(uint32_t prefix, const MessageKeys *keys, uint32_t *hashes) {
    if (!is_ascii(keys->uniq_key) || !is_ascii(keys->keys) || !is_ascii(keys->tags))
        return -1;
    int count = 0;
    if (keys->uniq_key.size != 0)
        hashes[count++] = index_hash(java_hash(prefix, keys->uniq_key));
    Cursor cursor = cursor_of(keys->keys);
    for (Span word; keys->keys.size != 0 && read_word(&cursor, &word);) {
        if (count == STORED_KEYS_MAX - 1)
            return -1;
        hashes[count++] = index_hash(java_hash(prefix, word));
    }
    if (keys->tags.size != 0) {
        prefix = java_hash(prefix, (Span){(const uint8_t *)"T#", 2});
        hashes[count++] = index_hash(java_hash(prefix, keys->tags));
    }
    return count;
}
