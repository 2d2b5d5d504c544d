/* Writes answers of sends (docs/internals/protocol.md#send-fields). */
#include "send_answers.h"

enum {
    FRAME_HEAD_BYTES = 8,
    BINARY_HEAD_BYTES = 21,
    /* Behind the host of an offset message id: 16 hex digits of the physical offset, a comma. */
    ID_END_BYTES = 17,
};

/* Write the message id: store host and physical offset in upper-case hex. */
static uint8_t *put_message_id(uint8_t *at, const AnswerParts *parts, int64_t position) {
    memcpy(at, parts->id_start.bytes, parts->id_start.size);
    at += parts->id_start.size;
    for (int shift = 60; shift >= 0; shift -= 4)
        *at++ = (uint8_t)"0123456789ABCDEF"[(uint64_t)position >> shift & 0xF];
    return at;
}

static uint8_t *put_buffer(uint8_t *at, const Buffer *buffer) {
    return put_bytes(at, buffer->bytes, buffer->size);
}

#define PUT_TEXT(at, text) put_bytes(at, text, sizeof(text) - 1)

/* Write the ids of the messages of a send, with commas between them. */
static uint8_t *put_message_ids(uint8_t *at, const AnswerParts *parts, const Answer *answer) {
    int64_t position = answer->position;
    for (size_t i = 0; i < answer->count; i++) {
        if (i != 0)
            *at++ = ',';
        at = put_message_id(at, parts, position);
        position += answer->messages[i].size;
    }
    return at;
}

static uint8_t *put_json_answer(uint8_t *at, const AnswerParts *parts, const SendHeader *send,
                                const Answer *answer) {
    at = put_buffer(at, &parts->json_start);
    at = put_message_ids(at, parts, answer);
    at = PUT_TEXT(at, "\",\"queueId\":\"");
    at = put_number(at, send->queue_id);
    at = PUT_TEXT(at, "\",\"queueOffset\":\"");
    at = put_number(at, answer->queue_offset);
    if (answer->handle.start != NULL) {
        at = PUT_TEXT(at, "\",\"recallHandle\":\"");
        at = put_span(at, answer->handle);
    }
    if (answer->uniq_key.start != NULL) {
        at = PUT_TEXT(at, "\",\"transactionId\":\"");
        at = put_span(at, answer->uniq_key);
    }
    at = PUT_TEXT(at, "\"");
    at = put_buffer(at, &parts->json_middle);
    at = put_number(at, send->opaque);
    return put_buffer(at, &parts->json_end);
}

static uint8_t *put_field(uint8_t *at, const char *name, size_t name_bytes, size_t value_bytes) {
    store_u16(at, (uint16_t)name_bytes);
    at = put_bytes(at + 2, name, name_bytes);
    store_u32(at, (uint32_t)value_bytes);
    return at + 4;
}

#define PUT_FIELD(at, name, value_bytes) put_field(at, name, sizeof(name) - 1, value_bytes)

static uint8_t *put_number_field(uint8_t *at, const char *name, size_t name_bytes, int64_t number) {
    uint8_t text[20];
    size_t size = (size_t)(put_number(text, number) - text);
    return put_bytes(put_field(at, name, name_bytes, size), text, size);
}

static uint8_t *put_binary_answer(uint8_t *at, const AnswerParts *parts, const SendHeader *send,
                                  const Answer *answer) {
    uint8_t *head = at;
    at = put_buffer(at, &parts->binary_start);
    store_u32(at, (uint32_t)send->opaque);
    store_u32(at + 4, 1);
    store_u32(at + 8, 0);
    uint8_t *ext = head + BINARY_HEAD_BYTES;
    size_t id_bytes = parts->id_start.size + ID_END_BYTES;
    at = PUT_FIELD(ext, "msgId", answer->count * id_bytes - 1);
    at = put_message_ids(at, parts, answer);
    at = put_number_field(at, "queueId", 7, send->queue_id);
    at = put_number_field(at, "queueOffset", 11, answer->queue_offset);
    if (answer->uniq_key.start != NULL) {
        at = PUT_FIELD(at, "transactionId", answer->uniq_key.size);
        at = put_span(at, answer->uniq_key);
    }
    if (answer->handle.start != NULL) {
        at = PUT_FIELD(at, "recallHandle", answer->handle.size);
        at = put_span(at, answer->handle);
    }
    at = put_buffer(at, &parts->binary_end);
    store_u32(ext - 4, (uint32_t)(at - ext));
    return at;
}

/* The most bytes of an answer; fixed texts and numbers take less than 256. */
static size_t answer_bytes_max(const AnswerParts *parts, const Answer *answer) {
    return 256 + parts->json_start.size + parts->json_middle.size + parts->json_end.size +
           parts->binary_end.size + answer->count * (parts->id_start.size + ID_END_BYTES) +
           answer->uniq_key.size + answer->handle.size;
}

bool add_answer(Buffer *answers, const AnswerParts *parts, const SendHeader *send,
                const Answer *answer) {
    uint8_t *frame = buffer_room(answers, answer_bytes_max(parts, answer));
    if (frame == NULL)
        return false;
    uint8_t *header = frame + FRAME_HEAD_BYTES;
    bool is_json = send->serialize_type == SERIALIZE_JSON;
    uint8_t *end = (is_json ? put_json_answer : put_binary_answer)(header, parts, send, answer);
    uint32_t header_bytes = (uint32_t)(end - header);
    store_u32(frame, header_bytes + 4);
    store_u32(frame + 4, (uint32_t)send->serialize_type << 24 | header_bytes);
    answers->size += (size_t)(end - frame);
    return true;
}

bool add_base64(Buffer *buffer, Span text) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint8_t *at = buffer_room(buffer, (text.size + 2) / 3 * 4);
    if (at == NULL)
        return false;
    Cursor cursor = cursor_of(text);
    while (bytes_left(&cursor) != 0) {
        uint32_t bits = 0;
        int count = 0;
        for (int byte; count < 3 && (byte = take_byte(&cursor)) >= 0; count++)
            bits |= (uint32_t)byte << (16 - 8 * count);
        for (int i = 0; i < 4; i++)
            *at++ = i <= count ? (uint8_t)digits[bits >> (18 - 6 * i) & 63] : '=';
    }
    buffer->size += (text.size + 2) / 3 * 4;
    return true;
}
