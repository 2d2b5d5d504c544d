/* Reads the frame of a pull (docs/internals/protocol.md#frames, #pulling). */
#include "pull_header.h"

#include "json.h"

enum { CODE_PULL = 11, CODE_LITE_PULL = 361 };
enum { SERIALIZE_JSON = 0, SERIALIZE_BINARY = 1 };
enum { FRAME_BYTES_MAX = 16777216, BINARY_HEAD_BYTES = 17 };

/* Fields beside the checked ones.  Others are skipped, as the Python decoder skips them. */
enum {
    QUEUE_OFFSET = PULL_CHECKED_FIELDS,
    COMMIT_OFFSET,
    SUSPEND_MS,
    MAX_COUNT,
    MAX_BYTES,
    REQUEST_SOURCE,
    FIELD_COUNT,
    UNKNOWN = FIELD_COUNT,
};

#define BIT(field) (1u << (field))

static const unsigned REQUIRED = BIT(PULL_GROUP) | BIT(PULL_TOPIC) | BIT(PULL_QUEUE_ID) |
                                 BIT(PULL_SYS_FLAG) | BIT(QUEUE_OFFSET) | BIT(COMMIT_OFFSET) |
                                 BIT(SUSPEND_MS) | BIT(MAX_COUNT);

#define NAME(text) {(const uint8_t *)(text), sizeof(text) - 1}

static const Span NAMES[FIELD_COUNT] = {
    [PULL_GROUP] = NAME("consumerGroup"),
    [PULL_TOPIC] = NAME("topic"),
    [PULL_SUBSCRIPTION] = NAME("subscription"),
    [PULL_EXPRESSION_TYPE] = NAME("expressionType"),
    [PULL_QUEUE_ID] = NAME("queueId"),
    [PULL_SYS_FLAG] = NAME("sysFlag"),
    [PULL_SUB_VERSION] = NAME("subVersion"),
    [QUEUE_OFFSET] = NAME("queueOffset"),
    [COMMIT_OFFSET] = NAME("commitOffset"),
    [SUSPEND_MS] = NAME("suspendTimeoutMillis"),
    [MAX_COUNT] = NAME("maxMsgNums"),
    [MAX_BYTES] = NAME("maxMsgBytes"),
    [REQUEST_SOURCE] = NAME("requestSource"),
};

static int field_of(Span name) {
    for (int field = 0; field < FIELD_COUNT; field++)
        if (is_equal(name, NAMES[field].start, NAMES[field].size))
            return field;
    return UNKNOWN;
}

static bool is_int64(Span text, int64_t *number) {
    Cursor cursor = cursor_of(text);
    return read_number(&cursor, number) && bytes_left(&cursor) == 0;
}

static bool is_int32(Span text, int32_t *number) {
    Cursor cursor = cursor_of(text);
    return read_int32(&cursor, number) && bytes_left(&cursor) == 0;
}

/* Take over one field; `seen` has the fields so far.  A second one of a name stops. */
static bool take_field(PullHeader *pull, unsigned *seen, int field, Span value) {
    int64_t number;
    int32_t small;
    if (field == UNKNOWN)
        return true;
    if (*seen & BIT(field))
        return false;
    *seen |= BIT(field);
    if (field < PULL_CHECKED_FIELDS)
        pull->checked[field] = value;
    switch (field) {
    case PULL_QUEUE_ID:
    case PULL_SYS_FLAG:
    case REQUEST_SOURCE:
        return is_int32(value, &small);
    case PULL_SUB_VERSION:
        return is_int64(value, &number);
    case SUSPEND_MS:
        return is_int64(value, &pull->suspend_ms);
    case QUEUE_OFFSET:
        return is_int64(value, &pull->queue_offset);
    case COMMIT_OFFSET:
        return is_int64(value, &pull->commit_offset);
    case MAX_COUNT:
        return is_int32(value, &pull->max_count);
    case MAX_BYTES:
        return is_int32(value, &pull->max_bytes);
    default:
        return is_ascii(value);
    }
}

/* -- JSON ------------------------------------------------------------------------------------- */

static bool read_json_fields(Cursor *cursor, PullHeader *pull) {
    unsigned seen = 0;
    if (!read_byte(cursor, '{'))
        return false;
    do {
        Span name, value;
        if (!read_plain_string(cursor, &name) || !read_byte(cursor, ':'))
            return false;
        int field = field_of(name);
        if (field == UNKNOWN ? !skip_scalar(cursor)
                             : !read_plain_string(cursor, &value) ||
                                   !take_field(pull, &seen, field, value))
            return false;
    } while (read_byte(cursor, ','));
    return read_byte(cursor, '}') && (seen & REQUIRED) == REQUIRED;
}

static bool read_json_header(Span header, PullHeader *pull) {
    enum { CODE = 1, EXT = 2, FLAG = 4, OPAQUE = 8, OTHER = 0 };
    unsigned seen = 0;
    int32_t flag = 0;
    Cursor cursor = cursor_of(header);
    if (!read_byte(&cursor, '{'))
        return false;
    do {
        Span name;
        if (!read_plain_string(&cursor, &name) || !read_byte(&cursor, ':'))
            return false;
        unsigned key = OTHER;
        bool is_read;
        if (is_equal(name, "code", 4)) {
            key = CODE;
            is_read = read_int32(&cursor, &pull->code);
        } else if (is_equal(name, "extFields", 9)) {
            key = EXT;
            is_read = read_json_fields(&cursor, pull);
        } else if (is_equal(name, "flag", 4)) {
            key = FLAG;
            is_read = read_int32(&cursor, &flag) && flag == 0;
        } else if (is_equal(name, "opaque", 6)) {
            key = OPAQUE;
            is_read = read_int32(&cursor, &pull->opaque);
        } else {
            is_read = skip_scalar(&cursor);
        }
        if (!is_read || seen & key)
            return false;
        seen |= key;
    } while (read_byte(&cursor, ','));
    return read_byte(&cursor, '}') && bytes_left(&cursor) == 0 && seen & CODE && seen & EXT;
}

/* -- binary ----------------------------------------------------------------------------------- */

static bool read_binary_field(Cursor *cursor, PullHeader *pull, unsigned *seen) {
    uint16_t name_bytes;
    uint32_t value_bytes;
    Span name, value;
    if (!read_u16(cursor, &name_bytes) || !read_span(cursor, name_bytes, &name) ||
        !read_u32(cursor, &value_bytes) || value_bytes > INT32_MAX ||
        !read_span(cursor, value_bytes, &value))
        return false;
    /* To Java an empty value is none. */
    return value.size == 0 || take_field(pull, seen, field_of(name), value);
}

static bool read_binary_header(Span header, PullHeader *pull) {
    unsigned seen = 0;
    uint32_t ext_bytes;
    Cursor cursor = cursor_of(header);
    /* code 2, language 1, version 2, opaque 4, flag 4, remark_bytes 4 */
    const uint8_t *head = read_bytes(&cursor, BINARY_HEAD_BYTES);
    if (head == NULL || load_u32(head + 9) != 0 ||
        read_bytes(&cursor, load_u32(head + 13)) == NULL || !read_u32(&cursor, &ext_bytes) ||
        ext_bytes != bytes_left(&cursor))
        return false;
    pull->code = load_u16(head);
    pull->opaque = (int32_t)load_u32(head + 5);
    while (bytes_left(&cursor) != 0)
        if (!read_binary_field(&cursor, pull, &seen))
            return false;
    return (seen & REQUIRED) == REQUIRED;
}

bool read_pull(Cursor *cursor, PullHeader *pull) {
    uint32_t length, packed;
    Span header;
    if (!read_u32(cursor, &length) || !read_u32(cursor, &packed))
        return false;
    /* A pull has no body. */
    uint32_t header_bytes = packed & 0xFFFFFF;
    if (length > FRAME_BYTES_MAX - 4 || length != header_bytes + 4 ||
        !read_span(cursor, header_bytes, &header))
        return false;
    *pull = (PullHeader){.serialize_type = (uint8_t)(packed >> 24)};
    bool is_read = pull->serialize_type == SERIALIZE_JSON     ? read_json_header(header, pull)
                   : pull->serialize_type == SERIALIZE_BINARY ? read_binary_header(header, pull)
                                                              : false;
    return is_read && (pull->code == CODE_PULL || pull->code == CODE_LITE_PULL);
}
