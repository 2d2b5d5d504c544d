/* Reads the frame of a send (docs/internals/protocol.md#frames, #send-fields). */
#include "send_header.h"

#include "json.h"

enum { CODE_SEND = 10, CODE_SEND_V2 = 310, CODE_SEND_BATCH = 320 };
enum { FLAG_ONEWAY = 2 };
enum { FRAME_BYTES_MAX = 16777216 };

/* Ext fields that matter.  Others are skipped, as the Python decoder skips them. */
typedef enum {
    TOPIC,
    QUEUE_ID,
    SYS_FLAG,
    BORN_MS,
    FLAG,
    PROPERTIES,
    RECONSUME_TIMES,
    BATCH,
    GROUP_HOME,
    FIELD_COUNT,
    UNKNOWN = FIELD_COUNT
} Field;

#define BIT(field) (1u << (field))

static const unsigned REQUIRED =
    BIT(TOPIC) | BIT(QUEUE_ID) | BIT(SYS_FLAG) | BIT(BORN_MS) | BIT(FLAG) | BIT(PROPERTIES);

static const char *const LONG_NAMES[FIELD_COUNT] = {
    [TOPIC] = "topic",
    [QUEUE_ID] = "queueId",
    [SYS_FLAG] = "sysFlag",
    [BORN_MS] = "bornTimestamp",
    [FLAG] = "flag",
    [PROPERTIES] = "properties",
    [RECONSUME_TIMES] = "reconsumeTimes",
    [BATCH] = "batch",
    [GROUP_HOME] = "cmqGroup",
};

static Field field_of_letter(int letter) {
    switch (letter) {
    case 'b':
        return TOPIC;
    case 'e':
        return QUEUE_ID;
    case 'f':
        return SYS_FLAG;
    case 'g':
        return BORN_MS;
    case 'h':
        return FLAG;
    case 'i':
        return PROPERTIES;
    case 'j':
        return RECONSUME_TIMES;
    case 'm':
        return BATCH;
    default:
        return UNKNOWN;
    }
}

static Field field_of(int32_t code, Span name) {
    if (code != CODE_SEND) {
        Cursor letter = cursor_of(name);
        if (name.size == 1)
            return field_of_letter(peek_byte(&letter));
        return is_equal(name, "cmqGroup", 8) ? GROUP_HOME : UNKNOWN;
    }
    for (int field = 0; field < FIELD_COUNT; field++)
        if (is_equal(name, LONG_NAMES[field], strlen(LONG_NAMES[field])))
            return (Field)field;
    return UNKNOWN;
}

static bool is_send_code(int32_t code) {
    return code == CODE_SEND || code == CODE_SEND_V2 || code == CODE_SEND_BATCH;
}

static bool is_int32(Span text, int32_t *number) {
    Cursor cursor = cursor_of(text);
    return read_int32(&cursor, number) && bytes_left(&cursor) == 0;
}

/* Take over one ext field; `seen` has the fields so far.  A second one of a name stops. */
static bool take_field(SendHeader *send, unsigned *seen, Field field, Span value) {
    if (field == UNKNOWN)
        return true;
    if (*seen & BIT(field))
        return false;
    *seen |= BIT(field);
    Cursor cursor;
    int32_t reconsume_times;
    switch (field) {
    case TOPIC:
        send->topic = value;
        return is_ascii(value);
    case QUEUE_ID:
        return is_int32(value, &send->queue_id);
    case SYS_FLAG:
        return is_int32(value, &send->sys_flag);
    case BORN_MS:
        cursor = cursor_of(value);
        return read_number(&cursor, &send->born_ms) && bytes_left(&cursor) == 0;
    case FLAG:
        return is_int32(value, &send->flag);
    case PROPERTIES:
        send->properties = value;
        return is_ascii(value);
    case RECONSUME_TIMES:
        return is_int32(value, &reconsume_times) && reconsume_times == 0;
    case BATCH:
        return is_equal(value, "false", 5) || (send->is_batch && is_equal(value, "true", 4));
    case GROUP_HOME:
        send->has_group_home = value.size != 0;
        return true;
    default:
        return false;
    }
}

/* -- JSON ------------------------------------------------------------------------------------- */

static int hex_digit(uint8_t byte) {
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    if (byte >= 'a' && byte <= 'f')
        return byte - 'a' + 10;
    if (byte >= 'A' && byte <= 'F')
        return byte - 'A' + 10;
    return -1;
}

/* Read what follows a backslash; -1 for what is no ASCII character. */
static int read_escape(Cursor *cursor) {
    const uint8_t *letter = read_bytes(cursor, 1);
    if (letter == NULL)
        return -1;
    switch (*letter) {
    case '"':
    case '\\':
    case '/':
        return *letter;
    case 'b':
        return '\b';
    case 'f':
        return '\f';
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    case 'u': {
        const uint8_t *digits = read_bytes(cursor, 4);
        if (digits == NULL || digits[0] != '0' || digits[1] != '0')
            return -1;
        int high = hex_digit(digits[2]), low = hex_digit(digits[3]);
        return high < 0 || high > 7 || low < 0 ? -1 : high << 4 | low;
    }
    default:
        return -1;
    }
}

/* Read a string of ASCII with escapes into `text`. */
static bool read_escaped_string(Cursor *cursor, Buffer *text) {
    if (!read_byte(cursor, '"'))
        return false;
    text->size = 0;
    /* A string is never longer unescaped, so room for all that is left is enough. */
    uint8_t *out = buffer_room(text, bytes_left(cursor));
    if (out == NULL)
        return false;
    for (;;) {
        int byte = take_byte(cursor);
        if (byte == '"') {
            text->size = (size_t)(out - text->bytes);
            return true;
        }
        if (byte < 0x20 || byte >= 0x80)
            return false;
        if (byte == '\\' && (byte = read_escape(cursor)) < 0)
            return false;
        *out++ = (uint8_t)byte;
    }
}

/* Skip the ext fields, which stand in front of the code; what is wrong in them is seen later. */
static bool skip_json_fields(Cursor *cursor) {
    bool is_in_string = false;
    for (int byte; (byte = take_byte(cursor)) >= 0;) {
        if (byte == '"')
            is_in_string = !is_in_string;
        else if (byte == '\\')
            take_byte(cursor);
        else if (byte == '}' && !is_in_string)
            return true;
    }
    return false;
}

static bool read_json_fields(Cursor *cursor, int32_t code, Buffer *text, SendHeader *send) {
    unsigned seen = 0;
    send->is_batch = code == CODE_SEND_BATCH;
    if (!read_byte(cursor, '{'))
        return false;
    do {
        Span name, value;
        if (!read_plain_string(cursor, &name) || !read_byte(cursor, ':'))
            return false;
        Field field = field_of(code, name);
        if (field == PROPERTIES) {
            if (seen & BIT(PROPERTIES) || !read_escaped_string(cursor, text))
                return false;
            value = buffer_span(text);
        } else if (field == UNKNOWN) {
            if (!skip_scalar(cursor))
                return false;
            continue;
        } else if (!read_plain_string(cursor, &value)) {
            return false;
        }
        if (!take_field(send, &seen, field, value))
            return false;
    } while (read_byte(cursor, ','));
    return read_byte(cursor, '}') && (seen & REQUIRED) == REQUIRED;
}

static bool read_json_header(Span header, Buffer *text, SendHeader *send) {
    enum { CODE = 1, EXT = 2, COMMAND_FLAG = 4, OPAQUE = 8, OTHER = 0 };
    unsigned seen = 0;
    int32_t code = 0, flag = 0;
    bool is_skipped = false;
    Cursor cursor = cursor_of(header), fields = {0};
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
            is_read = read_int32(&cursor, &code) && is_send_code(code);
        } else if (is_equal(name, "extFields", 9)) {
            key = EXT;
            fields = cursor;
            is_read = seen & CODE ? read_json_fields(&cursor, code, text, send)
                                  : skip_json_fields(&cursor);
            is_skipped = !(seen & CODE);
        } else if (is_equal(name, "flag", 4)) {
            key = COMMAND_FLAG;
            is_read = read_int32(&cursor, &flag);
        } else if (is_equal(name, "opaque", 6)) {
            key = OPAQUE;
            is_read = read_int32(&cursor, &send->opaque);
        } else {
            is_read = skip_scalar(&cursor);
        }
        if (!is_read || seen & key)
            return false;
        seen |= key;
    } while (read_byte(&cursor, ','));
    send->is_oneway = flag == FLAG_ONEWAY;
    return read_byte(&cursor, '}') && bytes_left(&cursor) == 0 && seen & EXT && seen & CODE &&
           (flag == 0 || flag == FLAG_ONEWAY) &&
           (!is_skipped || read_json_fields(&fields, code, text, send));
}

/* -- binary ----------------------------------------------------------------------------------- */

static bool read_binary_header(Span header, SendHeader *send) {
    unsigned seen = 0;
    Cursor cursor = cursor_of(header);
    const uint8_t *head = read_bytes(&cursor, 17);
    if (head == NULL)
        return false;
    /* code 2, language 1, version 2, opaque 4, flag 4, remark_bytes 4 */
    int32_t code = load_u16(head);
    uint32_t flag = load_u32(head + 9), ext_bytes;
    send->opaque = (int32_t)load_u32(head + 5);
    if (!is_send_code(code) || (flag != 0 && flag != FLAG_ONEWAY) ||
        read_bytes(&cursor, load_u32(head + 13)) == NULL || !read_u32(&cursor, &ext_bytes) ||
        ext_bytes != bytes_left(&cursor))
        return false;
    send->is_oneway = flag == FLAG_ONEWAY;
    send->is_batch = code == CODE_SEND_BATCH;
    while (bytes_left(&cursor) != 0) {
        uint16_t name_bytes;
        uint32_t value_bytes;
        Span name, value;
        if (!read_u16(&cursor, &name_bytes))
            return false;
        name = (Span){read_bytes(&cursor, name_bytes), name_bytes};
        if (name.start == NULL || !read_u32(&cursor, &value_bytes) || value_bytes > INT32_MAX)
            return false;
        value = (Span){read_bytes(&cursor, value_bytes), value_bytes};
        if (value.start == NULL)
            return false;
        /* To Java an empty value is none. */
        if (value.size != 0 && !take_field(send, &seen, field_of(code, name), value))
            return false;
    }
    return (seen & REQUIRED) == REQUIRED;
}

bool read_send(Cursor *cursor, Buffer *text, SendHeader *send, Span *body) {
    uint32_t length, packed;
    if (!read_u32(cursor, &length) || !read_u32(cursor, &packed))
        return false;
    uint32_t header_bytes = packed & 0xFFFFFF;
    if (length < 4 || length > FRAME_BYTES_MAX - 4 || length - 4 < header_bytes)
        return false;
    uint32_t body_bytes = length - 4 - header_bytes;
    Span header = {read_bytes(cursor, header_bytes), header_bytes};
    *body = (Span){read_bytes(cursor, body_bytes), body_bytes};
    if (header.start == NULL || body->start == NULL)
        return false;
    *send = (SendHeader){.serialize_type = (uint8_t)(packed >> 24)};
    if (send->serialize_type == SERIALIZE_JSON)
        return read_json_header(header, text, send);
    return send->serialize_type == SERIALIZE_BINARY && read_binary_header(header, send);
}
