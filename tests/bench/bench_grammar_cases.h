/* bench_grammar_cases.h - schemas and expressions with one document each, for bench_grammar. */
#ifndef TESTS_BENCH_BENCH_GRAMMAR_CASES_H
#define TESTS_BENCH_BENCH_GRAMMAR_CASES_H

static const struct bench_case {
    const char *name, *source, *document; /* source NULL: any object; ENUM: one of 1000 words */
    bool regex;
} cases[] = {
    {"any object", NULL,
     "{\"title\": \"A walk in the park\", \"tags\": [\"dogs\", \"rain\", \"mud\"], \"score\": "
     "4.75, \"nested\": {\"a\": [{\"b\": null}, {\"c\": true}], \"note\": \"She said: "
     "\\\"never mind\\\", and left.\\nThe end.\"}, \"count\": 12}",
     false},
    {"person",
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":1,"
     "\"maxLength\":80},\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"email\":{"
     "\"type\":\"string\",\"pattern\":\"^[^@ ]+@[^@ ]+\\\\.[a-z]{2,10}$\"},\"born\":{\"type\":"
     "\"string\",\"format\":\"date\"},\"hobbies\":{\"type\":\"array\",\"items\":{\"type\":"
     "\"string\"},\"maxItems\":10},\"bio\":{\"type\":\"string\",\"maxLength\":10000}},"
     "\"required\":[\"name\",\"age\",\"email\",\"born\",\"hobbies\",\"bio\"],"
     "\"additionalProperties\":false}",
     "{\n  \"name\": \"Ada Lovelace\",\n  \"age\": 36,\n  \"email\": "
     "\"ada.lovelace@analytical.example\",\n  \"born\": \"1815-12-10\",\n  \"hobbies\": "
     "[\"mathematics\", \"horses\", \"poetry and music\"],\n  \"bio\": \"Ada wrote what is often "
     "called the first program: a method for the Analytical Engine to compute Bernoulli numbers. "
     "She saw that such a machine could act on other things than number.\"\n}",
     false},
    {"extraction",
     "{\"type\":\"object\",\"properties\":{\"invoice_number\":{\"type\":\"string\"},\"date\":{"
     "\"type\":\"string\",\"format\":\"date-time\"},\"currency\":{\"enum\":[\"EUR\",\"USD\","
     "\"GBP\",\"CHF\"]},\"lines\":{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":"
     "\"object\",\"properties\":{\"sku\":{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-[0-9]{4}$\"}"
     ",\"text\":{\"type\":\"string\"},\"quantity\":{\"type\":\"integer\",\"minimum\":1},"
     "\"price\":{\"type\":\"number\",\"minimum\":0}},\"required\":[\"sku\",\"text\","
     "\"quantity\",\"price\"],\"additionalProperties\":false}},\"paid\":{\"type\":\"boolean\"},"
     "\"note\":{\"type\":[\"string\",\"null\"]}},\"required\":[\"invoice_number\",\"date\","
     "\"currency\",\"lines\",\"paid\",\"note\"],\"additionalProperties\":false}",
     "{\"invoice_number\":\"2024/0117-A\",\"date\":\"2024-03-18T09:30:00Z\",\"currency\":\"EUR\","
     "\"lines\":[{\"sku\":\"AB-1234\",\"text\":\"Steel bolts, M8, box of "
     "100\",\"quantity\":3,\"price\":12.5},{\"sku\":\"CD-0042\",\"text\":\"Assorted "
     "washers\",\"quantity\":10,\"price\":0.99},{\"sku\":\"ZZ-9999\",\"text\":\"Shipping and "
     "handling\",\"quantity\":1,\"price\":8}],\"paid\":false,\"note\":null}",
     false},
    {"steps (recursive)",
     "{\"$defs\":{\"step\":{\"type\":\"object\",\"properties\":{\"explanation\":{\"type\":"
     "\"string\"},\"output\":{\"type\":\"string\"},\"substeps\":{\"type\":\"array\",\"items\":{"
     "\"$ref\":\"#/$defs/step\"}}},\"required\":[\"explanation\",\"output\",\"substeps\"],"
     "\"additionalProperties\":false}},\"type\":\"object\",\"properties\":{\"steps\":{\"type\":"
     "\"array\",\"items\":{\"$ref\":\"#/$defs/step\"}},\"final_answer\":{\"type\":\"string\"}},"
     "\"required\":[\"steps\",\"final_answer\"],\"additionalProperties\":false}",
     "{\"steps\":[{\"explanation\":\"Subtract 7 from both sides of the equation to isolate the "
     "term with x.\",\"output\":\"8x = -30\",\"substeps\":[{\"explanation\":\"-23 - 7 = -30, "
     "because both are negative.\",\"output\":\"-30\",\"substeps\":[]}]},{\"explanation\":"
     "\"Divide by 8.\",\"output\":\"x = -30/8 = -15/4\",\"substeps\":[]}],\"final_answer\":\"x = "
     "-15/4\"}",
     false},
    {"union",
     "{\"type\":\"object\",\"properties\":{\"item\":{\"anyOf\":[{\"type\":\"object\","
     "\"properties\":{\"kind\":{\"const\":\"user\"},\"name\":{\"type\":\"string\"},\"age\":{"
     "\"type\":\"number\"}},\"required\":[\"kind\",\"name\",\"age\"],\"additionalProperties\":"
     "false},{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"address\"},\"number\":{"
     "\"type\":\"string\"},\"street\":{\"type\":\"string\"},\"city\":{\"type\":\"string\"}},"
     "\"required\":[\"kind\",\"number\",\"street\",\"city\"],\"additionalProperties\":false},{"
     "\"type\":\"object\",\"properties\":{\"kind\":{\"type\":\"string\"},\"other\":{}},"
     "\"required\":[\"kind\"]}]}},\"required\":[\"item\"],\"additionalProperties\":false}",
     "{\"item\": {\"kind\": \"address\", \"number\": \"12b\", \"street\": \"Rue de l'Église\", "
     "\"city\": \"Liège\"}}",
     false},
    {"email pattern",
     "{\"type\":\"object\",\"properties\":{\"mail\":{\"type\":\"string\",\"pattern\":\"^[^"
     "@ ]+@[^@ ]+\\\\.[a-z]{2,10}$\"}},\"required\":[\"mail\"],\"additionalProperties\":fa"
     "lse}",
     "{\"mail\":\"grace.hopper+navy@compilers.example.org\"}", false},
    {"word pattern",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^[a-zA"
     "-Z0-9._%+-]+@[a-zA-Z0-9.-]+\\\\.[a-zA-Z]{2,}$\"},\"b\":{\"type\":\"string\",\"patter"
     "n\":\"^[A-Z][a-z]+( [A-Z][a-z]+)*$\"}},\"required\":[\"a\",\"b\"],\"additionalProper"
     "ties\":false}",
     "{\"a\":\"grace.hopper+navy@compilers.example.org\",\"b\":\"Grace Brewster Murray Hop"
     "per\"}",
     false},
    {"not z",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^[a-y "
     ".]+$\"},\"b\":{\"type\":\"string\",\"pattern\":\"^[^eE]+$\"}},\"required\":[\"a\",\""
     "b\"],\"additionalProperties\":false}",
     "{\"a\":\"the quick brown fox jumps over the dog.\",\"b\":\"this solution is fantasti"
     "c, a virtuoso lipogram\"}",
     false},
    {"alternating",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^([^@#"
     "][^#$])+$\"}},\"required\":[\"a\"],\"additionalProperties\":false}",
     "{\"a\":\"pairs of characters, whatever they are, are counted here\"}", false},
    {"six patterns",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"string\",\"patter"
     "n\":\"^([^@A][^#A]){4,20}$\"},{\"type\":\"string\",\"pattern\":\"^([^@B][^#B]){4,20}"
     "$\"},{\"type\":\"string\",\"pattern\":\"^([^@C][^#C]){4,20}$\"},{\"type\":\"string\""
     ",\"pattern\":\"^([^@D][^#D]){4,20}$\"},{\"type\":\"string\",\"pattern\":\"^([^@E][^#"
     "E]){4,20}$\"},{\"type\":\"string\",\"pattern\":\"^([^@F][^#F]){4,20}$\"}]}},\"requir"
     "ed\":[\"a\"],\"additionalProperties\":false}",
     "{\"a\":\"pairs of characters, whatever!\"}", false},
    {"six small letters",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"string\",\"patter"
     "n\":\"^([^@e][^#e]){4,20}$\"},{\"type\":\"string\",\"pattern\":\"^([^@t][^#t]){4,20}"
     "$\"},{\"type\":\"string\",\"pattern\":\"^([^@a][^#a]){4,20}$\"},{\"type\":\"string\""
     ",\"pattern\":\"^([^@o][^#o]){4,20}$\"},{\"type\":\"string\",\"pattern\":\"^([^@i][^#"
     "i]){4,20}$\"},{\"type\":\"string\",\"pattern\":\"^([^@n][^#n]){4,20}$\"}]}},\"requir"
     "ed\":[\"a\"],\"additionalProperties\":false}",
     "{\"a\":\"my fuzzy hyphs jump, why? ok\"}", false},
    {"twenty patterns",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"string\",\"patter"
     "n\":\"^[^e]+$\"},{\"type\":\"string\",\"pattern\":\"^[^t]+$\"},{\"type\":\"string\","
     "\"pattern\":\"^[^a]+$\"},{\"type\":\"string\",\"pattern\":\"^[^o]+$\"},{\"type\":\"s"
     "tring\",\"pattern\":\"^[^i]+$\"},{\"type\":\"string\",\"pattern\":\"^[^n]+$\"},{\"ty"
     "pe\":\"string\",\"pattern\":\"^[^s]+$\"},{\"type\":\"string\",\"pattern\":\"^[^h]+$"
     "\"},{\"type\":\"string\",\"pattern\":\"^[^r]+$\"},{\"type\":\"string\",\"pattern\":"
     "\"^[^d]+$\"},{\"type\":\"string\",\"pattern\":\"^[^l]+$\"},{\"type\":\"string\",\"pa"
     "ttern\":\"^[^u]+$\"},{\"type\":\"string\",\"pattern\":\"^[^c]+$\"},{\"type\":\"strin"
     "g\",\"pattern\":\"^[^m]+$\"},{\"type\":\"string\",\"pattern\":\"^[^f]+$\"},{\"type\""
     ":\"string\",\"pattern\":\"^[^w]+$\"},{\"type\":\"string\",\"pattern\":\"^[^y]+$\"},{"
     "\"type\":\"string\",\"pattern\":\"^[^p]+$\"},{\"type\":\"string\",\"pattern\":\"^[^v"
     "]+$\"},{\"type\":\"string\",\"pattern\":\"^[^b]+$\"}]}},\"required\":[\"a\"],\"addit"
     "ionalProperties\":false}",
     "{\"a\":\"the quick brown fox jumps over it\"}", false},
    {"counted groups",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^(\\\\"
     "w{3,8}[ ,]){2,12}$\"},\"b\":{\"type\":\"string\",\"pattern\":\"^.{5,40}$\"}},\"requi"
     "red\":[\"a\",\"b\"],\"additionalProperties\":false}",
     "{\"a\":\"some words are here,each ended \",\"b\":\"anything at all that is long eno"
     "ugh\"}",
     false},
    {"numbers",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"number\"},\"b\":{\"type\":\"i"
     "nteger\",\"minimum\":-1000,\"maximum\":123456},\"c\":{\"type\":\"number\",\"minimum"
     "\":0,\"exclusiveMaximum\":1}},\"required\":[\"a\",\"b\",\"c\"],\"additionalPropertie"
     "s\":false}",
     "{\"a\":-12.75e10,\"b\":99312,\"c\":0.4375}", false},
    {"deep",
     "{\"type\":\"object\",\"properties\":{\"level11\":{\"type\":\"object\",\"properties\""
     ":{\"level10\":{\"type\":\"object\",\"properties\":{\"level9\":{\"type\":\"object\","
     "\"properties\":{\"level8\":{\"type\":\"object\",\"properties\":{\"level7\":{\"type\""
     ":\"object\",\"properties\":{\"level6\":{\"type\":\"object\",\"properties\":{\"level5"
     "\":{\"type\":\"object\",\"properties\":{\"level4\":{\"type\":\"object\",\"properties"
     "\":{\"level3\":{\"type\":\"object\",\"properties\":{\"level2\":{\"type\":\"object\","
     "\"properties\":{\"level1\":{\"type\":\"object\",\"properties\":{\"level0\":{\"type\""
     ":\"object\",\"properties\":{\"leaf\":{\"type\":\"string\"}},\"required\":[\"leaf\"],"
     "\"additionalProperties\":false},\"n0\":{\"type\":\"integer\"}},\"required\":[\"level"
     "0\",\"n0\"],\"additionalProperties\":false},\"n1\":{\"type\":\"integer\"}},\"require"
     "d\":[\"level1\",\"n1\"],\"additionalProperties\":false},\"n2\":{\"type\":\"integer\""
     "}},\"required\":[\"level2\",\"n2\"],\"additionalProperties\":false},\"n3\":{\"type\""
     ":\"integer\"}},\"required\":[\"level3\",\"n3\"],\"additionalProperties\":false},\"n4"
     "\":{\"type\":\"integer\"}},\"required\":[\"level4\",\"n4\"],\"additionalProperties\""
     ":false},\"n5\":{\"type\":\"integer\"}},\"required\":[\"level5\",\"n5\"],\"additional"
     "Properties\":false},\"n6\":{\"type\":\"integer\"}},\"required\":[\"level6\",\"n6\"],"
     "\"additionalProperties\":false},\"n7\":{\"type\":\"integer\"}},\"required\":[\"level"
     "7\",\"n7\"],\"additionalProperties\":false},\"n8\":{\"type\":\"integer\"}},\"require"
     "d\":[\"level8\",\"n8\"],\"additionalProperties\":false},\"n9\":{\"type\":\"integer\""
     "}},\"required\":[\"level9\",\"n9\"],\"additionalProperties\":false},\"n10\":{\"type"
     "\":\"integer\"}},\"required\":[\"level10\",\"n10\"],\"additionalProperties\":false},"
     "\"n11\":{\"type\":\"integer\"}},\"required\":[\"level11\",\"n11\"],\"additionalPrope"
     "rties\":false}",
     "{\"level11\": {\"level10\": {\"level9\": {\"level8\": {\"level7\": {\"level6\": {\"l"
     "evel5\": {\"level4\": {\"level3\": {\"level2\": {\"level1\": {\"level0\": {\"leaf\":"
     " \"deep down\"}, \"n0\": 0}, \"n1\": 1}, \"n2\": 2}, \"n3\": 3}, \"n4\": 4}, \"n5\":"
     " 5}, \"n6\": 6}, \"n7\": 7}, \"n8\": 8}, \"n9\": 9}, \"n10\": 10}, \"n11\": 11}",
     false},
    {"enum of 1000", "ENUM", "{\"a\":\"theta-57\"}", false},
    {"short strings",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":12},\""
     "b\":{\"type\":\"string\",\"minLength\":3,\"maxLength\":40},\"c\":{\"type\":\"string"
     "\",\"pattern\":\"^[a-z ]{3,30}$\"}},\"required\":[\"a\",\"b\",\"c\"],\"additionalPro"
     "perties\":false}",
     "{\"a\":\"twelve chars\",\"b\":\"not more than forty characters\",\"c\":\"lower case "
     "and spaces\"}",
     false},
    {"formats",
     "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"string\",\"format\":\"uuid\""
     "},\"d\":{\"type\":\"string\",\"format\":\"date\"},\"t\":{\"type\":\"string\",\"forma"
     "t\":\"date-time\"}},\"required\":[\"id\",\"d\",\"t\"],\"additionalProperties\":false"
     "}",
     "{\"id\":\"01234567-89ab-cdef-0123-456789abcdef\",\"d\":\"2024-02-29\",\"t\":\"2024-0"
     "2-29T23:59:59.125+05:30\"}",
     false},
    {"hex",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^[0-9a"
     "-f]{64}$\"},\"b\":{\"type\":\"string\",\"pattern\":\"^#[0-9a-fA-F]{6}$\"}},\"require"
     "d\":[\"a\",\"b\"],\"additionalProperties\":false}",
     "{\"a\": \"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\", \"b\":"
     " \"#00fFaB\"}",
     false},
    {"regex: address",
     "\\d{1,4} [A-Z][a-z]{2,15}( [A-Z][a-z]{2,15}){0,3}, [A-Z]{2} \\d{5}(-\\d{4})?",
     "1600 Pennsylvania Avenue, DC 20500-0003", true},
    {"regex: free", "Thought: .{1,200}\\nAction: (search|read|write)\\[[^\\]\\n]+\\]",
     "Thought: it would be good to know more about the weather in Berne first.\nAction: se"
     "arch[weather in Berne today]",
     true},
    {"regex: csv", "([^,\\n\"]*(,[^,\\n\"]*){3}\\n){1,20}",
     "name,age,city,note\nAda,36,London,wrote the first program\n", true},
    {"keys beside names",
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"names\":{\"typ"
     "e\":\"string\"},\"nation\":{\"type\":\"string\"},\"number\":{\"type\":\"string\"},\""
     "title\":{\"type\":\"string\"}},\"additionalProperties\":{\"type\":\"integer\"},\"req"
     "uired\":[\"name\"]}",
     "{\"name\":\"x\",\"title\":\"y\",\"other thing\":1,\"Nations united\":2}", false},
    {"wide",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^[\\\\"
     "u4e00-\\\\u9fff]+$\"},\"b\":{\"type\":\"string\",\"pattern\":\"^[\\\\u0400-\\\\u04ff"
     "a-z ]+$\"}},\"required\":[\"a\",\"b\"],\"additionalProperties\":false}",
     "{\"a\":\"日本語文字\",\"b\":\"привет world\"}", false},
};

#endif
