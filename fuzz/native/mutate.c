#include "mutate.h"

#include "bytes.h"

/* -- which parts of the core were reached ------------------------------------------------------ */

bool is_new;
static bool is_reached[1 << 16];

/* The core's files are compiled with -fsanitize-coverage=trace-pc. */
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
    uintptr_t part = (uintptr_t)__builtin_return_address(0) - (uintptr_t)&mutate;
    bool *reached = &is_reached[part & 0xFFFF];
    is_new |= !*reached;
    *reached = true;
}

/* -- mutation ---------------------------------------------------------------------------------- */

static uint64_t chance_state = 1;

void seed_chance(uint64_t seed) {
    chance_state = seed * 2 + 1;
}

uint32_t chance(uint32_t end) {
    chance_state ^= chance_state << 13;
    chance_state ^= chance_state >> 7;
    chance_state ^= chance_state << 17;
    return (uint32_t)((chance_state >> 32) * end >> 32);
}

#define TOKEN(text) {text, sizeof(text) - 1}
static const struct {
    const char *text;
    size_t size;
} tokens[] = {
    TOKEN("\""),          TOKEN("\\"),          TOKEN("\\u00"),       TOKEN("\\u0041"),
    TOKEN("\\b"), TOKEN("\\f"), TOKEN("\\r"), TOKEN("\\t"), TOKEN("\\/"),
    TOKEN("\\u0000"),     TOKEN("\\u0080"),     TOKEN("\\n"),         TOKEN("{"),
    TOKEN("}"),           TOKEN(","),           TOKEN(":"),           TOKEN("-"),
    TOKEN("0"),           TOKEN("00"),          TOKEN("null"),        TOKEN("true"),
    TOKEN("false"),       TOKEN("2147483647"),  TOKEN("-2147483648"), TOKEN("2147483648"),
    TOKEN("999999999999999999"),                TOKEN("9999999999999999999"),
    TOKEN("\"code\":310"), TOKEN("\"code\":10"), TOKEN("\"extFields\":{"), TOKEN("\"flag\":2"),
    TOKEN("\"opaque\":"), TOKEN("\"b\":\"t\""), TOKEN("\"e\":\"0\""), TOKEN("\"f\":\"0\""),
    TOKEN("\"g\":\"1\""), TOKEN("\"h\":\"0\""), TOKEN("\"i\":\""),    TOKEN("\"j\":\"0\""),
    TOKEN("\"m\":\"false\""), TOKEN("\"cmqGroup\":\"g\""), TOKEN("\"properties\":\""),
    TOKEN("\x01"),        TOKEN("\x02"),        TOKEN("UNIQ_KEY\x01"), TOKEN("\x02KEYS\x01"),
    TOKEN("\x02TAGS\x01"), TOKEN("DELAY"),      TOKEN("TIMER_"),      TOKEN("TRAN_MSG"),
    TOKEN("POP_CK"),      TOKEN("\xF0\x9F\x98\x80"), TOKEN("\xC3\xA9"), TOKEN("\xE2\x82\xAC"),
    TOKEN("\xFF"),        TOKEN("\x00"),        TOKEN("\x01\x36"),    TOKEN("\x00\x0A"),
    TOKEN("\"code\":11"), TOKEN("\"code\":361"), TOKEN("\"queueOffset\":\"7\""),
    TOKEN("\"subscription\":\"*\""), TOKEN("\"maxMsgBytes\":\"1\""), TOKEN("\x00\x0B"),
    TOKEN("\"code\":320"), TOKEN("\x01\x40"),    TOKEN("\"m\":\"true\""), TOKEN("WAIT\x01" "false"),
    TOKEN("\x00\x01" "b\x00\x00\x00\x01t"),     TOKEN("\x00\x08" "cmqGroup\x00\x00\x00\x01g"),
};

static const uint32_t numbers[] = {0,      1,       2,          3,          4,          7,
                                   8,      0x7FFF,  0x8000,     0xFFFF,     0xFFFFFF,   0x1000000,
                                   0xFFFFFC, 0xFFFFFD, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};

/* Put bytes in place of others, as far as there is room. */
static size_t replace(uint8_t *bytes, size_t size, size_t at, size_t gone, const void *put,
                      size_t put_bytes) {
    if (size - gone + put_bytes > INPUT_BYTES_MAX)
        return size;
    memmove(bytes + at + put_bytes, bytes + at + gone, size - at - gone);
    memcpy(bytes + at, put, put_bytes);
    return size - gone + put_bytes;
}

static size_t mutate_once(uint8_t *bytes, size_t size, Input other) {
    size_t at = chance((uint32_t)size + 1);
    size_t left = size - at;
    uint8_t word[8];
    size_t from, count;
    switch (chance(8)) {
    case 0:
        if (left != 0)
            bytes[at] ^= (uint8_t)(1u << chance(8));
        return size;
    case 1:
        if (left != 0)
            bytes[at] = (uint8_t)chance(256);
        return size;
    case 2:
        count = chance(sizeof tokens / sizeof *tokens);
        return replace(bytes, size, at, 0, tokens[count].text, tokens[count].size);
    case 3:
        count = chance(sizeof tokens / sizeof *tokens);
        return replace(bytes, size, at, left < tokens[count].size ? left : tokens[count].size,
                       tokens[count].text, tokens[count].size);
    case 4:
        count = chance(left < 24 ? (uint32_t)left + 1 : 24);
        return replace(bytes, size, at, count, "", 0);
    case 5:
        if (left < 4)
            return size;
        store_u32(word, numbers[chance(sizeof numbers / sizeof *numbers)]);
        count = chance(2) ? 4 : 2;
        return replace(bytes, size, at, count, word + 4 - count, count);
    case 6:
        from = chance((uint32_t)other.size + 1);
        count = chance((uint32_t)(other.size - from < 64 ? other.size - from + 1 : 64));
        return replace(bytes, size, at, chance(2) && count <= left ? count : 0,
                       other.bytes + from, count);
    default:
        return chance(8) ? size : at;
    }
}

/* Make the lengths of the frame right again, so that the damage is deep inside; or those of the
 * record, by its last length. */
static void repair(uint8_t *bytes, size_t size, size_t body_bytes) {
    if (size >= 8 && load_u32(bytes + 4) >> 16 == 0xDAA3) {
        store_u32(bytes, (uint32_t)size);
        return;
    }
    if (size < 8 + body_bytes)
        return;
    store_u32(bytes, (uint32_t)size - 4);
    store_u32(bytes + 4, (uint32_t)(bytes[4] & 1) << 24 | (uint32_t)(size - 8 - body_bytes));
}

size_t mutate(uint8_t *bytes, size_t size, Input other, bool is_framed) {
    size_t body_bytes = 0;
    if (size >= 8 && (load_u32(bytes + 4) & 0xFFFFFF) <= size - 8)
        body_bytes = size - 8 - (load_u32(bytes + 4) & 0xFFFFFF);
    for (uint32_t rounds = 1 + chance(4); rounds != 0; rounds--)
        size = mutate_once(bytes, size, other);
    if (is_framed && chance(4) != 0)
        repair(bytes, size, body_bytes);
    return size;
}
