# SPDX-License-Identifier: Apache-2.0
"""Seeded strings for the tokenizer oracles: scripts, code, numbers, spaces, emoji, marks, special tokens.

Own sentences and synthetic material, plus an excerpt of the King James Bible of 1611/1769 (public domain).
Code points are those of Unicode 11 or older, so that no table of a later version can change an answer.
"""

import pathlib
import unicodedata

import common

TEXTS = pathlib.Path(__file__).parent / "texts"


def _load_newer():
    newer = set()
    for line in (TEXTS / "unicode_12_to_14.txt").read_text().splitlines():
        if not line.startswith("#"):
            first, last = (int(x, 16) for x in line.split("-"))
            newer.update(range(first, last + 1))
    return newer


NEWER = _load_newer()


def settled(code_point):
    """Assigned, not private, not a surrogate, and as old as Unicode 11."""
    return code_point not in NEWER and unicodedata.category(chr(code_point)) not in ("Cn", "Cs", "Co")


def kjv():
    return (TEXTS / "kjv_excerpt.txt").read_text()


SENTENCES = [
    "The ferry leaves at half past nine, and nobody waits for the last passenger.",
    "I can't say we're late; they'd told us it's fine, but she'll check what I've done and I'm sure he doesn't mind.",
    "Der Zug fährt um 14:35 Uhr ab, und die Straße nach Köln ist wegen Überschwemmung gesperrt.",
    "L'été dernier, l'œuvre a été achevée où l'on croyait qu'il n'y avait rien : « voilà », dit-elle.",
    "El niño comió piñas en la montaña; ¿cuándo volverá?, ¡qué sé yo!",
    "A manhã não começou bem: o pão acabou e a ligação caiu três vezes.",
    "Perché la città è così rumorosa? Non c'è più silenzio, né di giorno né di notte.",
    "Zażółć gęślą jaźń, a potem wróć do łóżka przed północą.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy u řeky.",
    "Árvíztűrő tükörfúrógép zúgott a műhelyben egész délután.",
    "Şişli'de ılık bir IĞDIR rüzgârı esiyordu; İstanbul'da ise ISPARTA gülleri ıslanmıştı.",
    "Våren kom sent til øya, og båten lå på land til æresgjestene dro.",
    "Hyvää yötä, äiti! Pöydällä on yksi sämpylä ja kahvia.",
    "Þórður sá ísbjörn við höfnina og hljóp heim á örskotsstundu.",
    "Быстрая лодка шла вверх по реке, и никто не знал, где она остановится.",
    "Їхній їжак з'їв ґречану кашу й пішов до лісу.",
    "Ο γρήγορος βάτραχος πήδηξε πάνω από τον νυσταγμένο σκύλο· γιατί όχι;",
    "Ἐν ἀρχῇ ἦν ὁ λόγος, ᾧ πάντα ᾠδὴ καὶ ῥυθμός.",
    "השפן המהיר קפץ מעל הגדר, ואז שָׁתָה מַיִם.",
    "ذهب الولد إلى السوق واشترى ٣ تفاحات بسعر ٥٫٢٥ دراهم، ثم عاد.",
    "یک روز خوب در کتاب‌خانه گذشت و ما ۱۲ صفحه خواندیم.",
    "بارش کے بعد گلی میں پانی کھڑا تھا۔",
    "नदी के किनारे एक छोटा-सा गाँव था, जहाँ १२ परिवार रहते थे।",
    "নদীর ধারে ছোট্ট একটি গ্রাম, সেখানে বৃষ্টি হচ্ছে।",
    "ஆற்றங்கரையில் ஒரு சிறிய கிராமம் இருந்தது.",
    "నది ఒడ్డున ఒక చిన్న గ్రామం ఉండేది.",
    "ನದಿಯ ದಡದಲ್ಲಿ ಒಂದು ಸಣ್ಣ ಹಳ್ಳಿ ಇತ್ತು.",
    "പുഴയുടെ തീരത്ത് ഒരു ചെറിയ ഗ്രാമം ഉണ്ടായിരുന്നു.",
    "แม่น้ำสายนี้ไหลผ่านหมู่บ้านเล็กๆ ราคา ๒๕ บาท",
    "ແມ່ນ້ຳໄຫຼຜ່ານບ້ານນ້ອຍ",
    "မြစ်ကမ်းနားမှာ ရွာငယ်လေး တစ်ရွာ ရှိတယ်။",
    "មានភូមិតូចមួយនៅមាត់ទន្លេ។",
    "མཚོ་འགྲམ་དུ་གྲོང་ཚོ་ཆུང་ཆུང་ཞིག་ཡོད།",
    "მდინარის პირას პატარა სოფელი იყო.",
    "Գետի ափին մի փոքրիկ գյուղ կար։",
    "በወንዙ ዳር ትንሽ መንደር ነበረች።",
    "Con thuyền nhỏ trôi dọc theo dòng sông, rồi dừng lại dưới cây cầu gỗ cũ kỹ.",
    "Angin bertiup kencang, tetapi perahu-perahu itu tetap berlayar.",
    "河边有一个小村庄，村里住着十二户人家；今年是2024年，气温-3.5℃。",
    "船はゆっくりと川を下り、ＡＢＣ橋の下で止まった。カタカナもひらがなも、ー（長音）も。",
    "강가에 작은 마을이 있었는데, 모두 12가구가 살고 있었다.",
    "今天天气很好，我们去公园玩吧！（真的吗？）「好」。",
    "他說：「請把門關上，謝謝。」然後走了出去……",
    "e\u0301tude na\u0308ive A\u030angstro\u0308m \u1e9b\u0323 o\u0302\u0323 \u006f\u0323\u0302",
    "Visit https://example.org/a/b?c=1&d=%20x#frag or mail first.last+tag@example.com today!",
    "Call +1 (555) 010-9999, pay $1,234,567.89 (or 1.234.567,89 €), 50% off, #42, v1.2.3-rc.4.",
    "x² + y³ = ½·z₁ ≤ ∞ ∑∏√∂ ≈ ≠ ± × ÷ → ⇒ ∀x∈ℝ",
    "SHOUTING WORDS, CamelCaseWords, snake_case_words, kebab-case-words, XMLHttpRequest2JSON",
]

CODE = [
    "def fib(n: int) -> int:\n    \"\"\"Return the n-th number.\"\"\"\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n",
    "#include <vector>\nint main() {\n\tstd::vector<int> v{1, 2, 3};\n\tfor (auto&& x : v) { x <<= 2; }\n\treturn v.empty() ? 1 : 0;\n}\n",
    "fn main() -> Result<(), Box<dyn Error>> {\n    let s: &'static str = r#\"raw \"quoted\"\"#;\n    println!(\"{s:?}\");\n    Ok(())\n}\n",
    "const f = async (x) => { await g`tag ${x + 1}`; return x?.y ?? /re+/g.test('z'); };\n",
    "SELECT a.id, COUNT(*) AS n FROM a LEFT JOIN b ON a.id = b.a_id WHERE b.x IS NOT NULL GROUP BY 1 HAVING COUNT(*) > 3;\n",
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Z\\u00fcrich\", \"days\": [1, 2, 3], \"ok\": true, \"none\": null}}",
    "<div class=\"a b\" data-x='1'><!-- note --><p>Hi &amp; bye&nbsp;</p></div>\n",
    "for i in $(seq 1 10); do\n  echo \"$i: ${HOME}/x\" | sed -e 's/[0-9]\\+/N/g' >> /dev/null 2>&1\ndone\n",
    "# Title\n\n* item **bold** _it_\n  1. sub\n\n```c\nint x;\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
    "\\begin{equation} \\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2} \\end{equation}\n",
    "public static void main(String[] args) throws IOException {\r\n\t\tSystem.out.println(\"x\" + 0x1F + 1e-9f);\r\n}\r\n",
    "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,3 +1,4 @@\n-old line\n+new line\n+\n",
    "if (a&&b||!c){d=e[f]->g(h,i)...;}//comment\n/*** long ****/\n",
    "10 PRINT \"HELLO\"\n20 GOTO 10\n",
    "    \t  indented\n\t\t\ttabs\n        eight\n   \n\n\n\nend",
]

# (name, first, last) of scripts and blocks
BLOCKS = [
    ("latin1", 0xA1, 0xFF), ("latin_ext_a", 0x100, 0x17F), ("latin_ext_b", 0x180, 0x24F), ("ipa", 0x250, 0x2AF),
    ("modifiers", 0x2B0, 0x2FF), ("greek", 0x370, 0x3FF), ("cyrillic", 0x400, 0x52F), ("armenian", 0x530, 0x58F),
    ("hebrew", 0x590, 0x5FF), ("arabic", 0x600, 0x6FF), ("syriac", 0x700, 0x74F), ("thaana", 0x780, 0x7BF),
    ("nko", 0x7C0, 0x7FF), ("devanagari", 0x900, 0x97F), ("bengali", 0x980, 0x9FF), ("gurmukhi", 0xA00, 0xA7F),
    ("gujarati", 0xA80, 0xAFF), ("oriya", 0xB00, 0xB7F), ("tamil", 0xB80, 0xBFF), ("telugu", 0xC00, 0xC7F),
    ("kannada", 0xC80, 0xCFF), ("malayalam", 0xD00, 0xD7F), ("sinhala", 0xD80, 0xDFF), ("thai", 0xE00, 0xE7F),
    ("lao", 0xE80, 0xEFF), ("tibetan", 0xF00, 0xFFF), ("myanmar", 0x1000, 0x109F), ("georgian", 0x10A0, 0x10FF),
    ("jamo", 0x1100, 0x11FF), ("ethiopic", 0x1200, 0x137F), ("cherokee", 0x13A0, 0x13FF), ("canadian", 0x1400, 0x167F),
    ("ogham", 0x1680, 0x169F), ("runic", 0x16A0, 0x16FF), ("khmer", 0x1780, 0x17FF), ("mongolian", 0x1800, 0x18AF),
    ("latin_additional", 0x1E00, 0x1EFF), ("greek_ext", 0x1F00, 0x1FFF), ("punctuation", 0x2010, 0x205E),
    ("super_sub", 0x2070, 0x209F), ("currency", 0x20A0, 0x20BF), ("letterlike", 0x2100, 0x214F),
    ("number_forms", 0x2150, 0x218F), ("arrows", 0x2190, 0x21FF), ("maths", 0x2200, 0x22FF), ("technical", 0x2300, 0x23FF),
    ("enclosed", 0x2460, 0x24FF), ("box", 0x2500, 0x257F), ("symbols", 0x2600, 0x26FF), ("dingbats", 0x2700, 0x27BF),
    ("braille", 0x2800, 0x28FF), ("glagolitic", 0x2C00, 0x2C5E), ("coptic", 0x2C80, 0x2CFF), ("radicals", 0x2E80, 0x2EF3),
    ("cjk_punctuation", 0x3000, 0x303F), ("hiragana", 0x3041, 0x309F), ("katakana", 0x30A0, 0x30FF),
    ("bopomofo", 0x3105, 0x312F), ("hangul_compat", 0x3131, 0x318E), ("enclosed_cjk", 0x3200, 0x32FE),
    ("cjk_compat", 0x3300, 0x33FF), ("cjk_a", 0x3400, 0x4DB5), ("cjk", 0x4E00, 0x9FEF), ("cjk_core", 0x4E00, 0x56FF),
    ("yi", 0xA000, 0xA48C), ("vai", 0xA500, 0xA62B), ("hangul", 0xAC00, 0xD7A3), ("cjk_compat_ideographs", 0xF900, 0xFAD9),
    ("arabic_forms", 0xFE70, 0xFEFC), ("fullwidth", 0xFF01, 0xFFEE), ("linear_b", 0x10000, 0x100FA),
    ("gothic", 0x10330, 0x1034A), ("deseret", 0x10400, 0x1044F), ("cuneiform", 0x12000, 0x12399),
    ("hieroglyphs", 0x13000, 0x1342E), ("music", 0x1D100, 0x1D1E8), ("maths_letters", 0x1D400, 0x1D7FF),
    ("adlam", 0x1E900, 0x1E943), ("emoticons", 0x1F600, 0x1F64F), ("pictographs", 0x1F300, 0x1F5FF),
    ("transport", 0x1F680, 0x1F6D4), ("supplemental_pictographs", 0x1F910, 0x1F93E), ("cjk_b", 0x20000, 0x2A6D6),
]

SPACES = [" ", "  ", "\t", "\n", "\r", "\r\n", "\x0b", "\x0c", "\u0085", "\u00a0", "\u1680", "\u180e", "\u2000", "\u2002",
          "\u2003", "\u2009", "\u200a", "\u200b", "\u200c", "\u200d", "\u2028", "\u2029", "\u202f", "\u205f", "\u2060",
          "\u3000", "\ufeff", "\x1c", "\x1d", "\x1e", "\x1f"]

EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇨🇭", "🇯🇵🇩🇪", "1️⃣", "#️⃣", "❤️", "❤", "☺︎", "🧑🏿‍🚀", "👁️‍🗨️", "🤷‍♀️", "🎌", "🀄", "🈳", "©️", "™", "♟",
         "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"]

CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'LL", "'lL", "'D", "\u2019s", "\u2019LL",
                "'\u017f", "'\u017fs", "'ſt", "''s", "'", "'sx", "'dé", "'ll've", "'x", "'tt", "'rE", "'vE"]

MARKS = ["\u0300", "\u0301", "\u0302", "\u0303", "\u0308", "\u030a", "\u030c", "\u0323", "\u0327", "\u0328", "\u0331", "\u0338", "\u0345",
         "\u0315", "\u031b", "\u035c", "\u0344", "\u0340", "\u0341", "\u0343", "\u0374", "\u20dd", "\ufe0f", "\u05b0", "\u05bc",
         "\u0651", "\u064e", "\u093c", "\u09be", "\u0bbe", "\u3099", "\u309a", "\u1161", "\u11a8"]

# Canonical singletons, composition exclusions, Hangul, reordering: where NFC does something
NFC_CASES = ["\u2126\u212b\u212a", "\u0958\u0959\u095f", "\u0915\u093c", "\u1e9b\u0323", "\u0344", "\u1100\u1161\u11a8",
             "\uac00\u11a8", "\u1100\u1161\u1100\u1161", "\u1112\u1161\u11ab\u1100\u1173\u11af", "a\u0315\u0300\u05ae\u0300b",
             "a\u0323\u0302", "a\u0302\u0323", "q\u0307\u0323", "\u0344\u0301", "\u2adc", "\ufb1d\ufb2a\ufb49", "\uf900\ufa30\ufad9",
             "\u0cc6\u0cc2\u0cd5", "\u0dd9\u0dca", "\u0b47\u0b56", "\u09c7\u09be\u09d7", "\u1025\u102e", "\U0001d15e\U0001d161",
             "\u304b\u3099\u306f\u309a", "\u0061\u0328\u0301", "\u0105\u0301", "\u1e0b\u0323", "\u1e0d\u0307", "e\u0301\u0301\u0301",
             "\u0301leading", " \u0301space", "\n\u0308x", "\u00e9\u0323", "\u01d6\u01d5\u0075\u0308\u0304", "\u1f00\u0345\u0342",
             "\u03b1\u0313\u0342\u0345", "\u212b\u0301\u00c5\u0301\u0041\u030a\u0301", "\u00ad\u0301\u034f\u0301", "fi\ufb01\ufb03",
             "\u0340\u0341\u0374\u037e\u0387", "\u1ffd\u1fef\u2000\u2001", "\u226e\u003c\u0338", "\U0002f800\U0002fa1d"]


class Maker:
    def __init__(self, key):
        self.rng = common.rng_of("sample text", key)
        self.chars = {name: [c for c in range(a, b + 1) if settled(c)] for name, a, b in BLOCKS}

    def integer(self, low, high):
        """low..high inclusive"""
        return int(self.rng.integers(low, high + 1))

    def pick(self, items):
        return items[int(self.rng.integers(0, len(items)))]

    def chance(self, p):
        return bool(self.rng.random() < p)

    def word(self, block, low=1, high=8):
        return "".join(chr(self.pick(self.chars[block])) for _ in range(self.integer(low, high)))

    def ascii_word(self, low=1, high=10):
        letters = "etaoinshrdlucmfwypvbgkqjxz"
        weight = self.rng.geometric(0.12, self.integer(low, high)) - 1
        word = "".join(letters[min(int(w), 25)] for w in weight)
        return self.pick([word, word, word, word.capitalize(), word.upper()])

    def digits(self):
        kind = self.integer(0, 9)
        n = self.integer(1, 14)
        if kind < 6:
            return "".join(str(self.integer(0, 9)) for _ in range(n))
        base = self.pick([0x660, 0x6F0, 0x966, 0x9E6, 0xE50, 0xFF10, 0x1D7CE])
        if kind < 8:
            return "".join(chr(base + self.integer(0, 9)) for _ in range(n))
        return "".join(chr(self.pick(self.chars[self.pick(["super_sub", "number_forms", "enclosed"])])) for _ in range(min(n, 5)))

    def spaces(self):
        run = "".join(self.pick(SPACES) for _ in range(self.integer(1, 5)))
        return self.pick([run, " " * self.integer(1, 30), "\n" * self.integer(1, 6), "\t" * self.integer(1, 5), " \n" * self.integer(1, 4)])

    def identifier(self):
        return self.pick(["_", "", "m_", "k"]).join(self.ascii_word(1, 6) for _ in range(self.integer(1, 3)))

    def code(self):
        i = self.identifier
        return self.pick([
            lambda: f"{i()}.{i()}({i()}, {self.integer(0, 99999)});\n",
            lambda: f"    if ({i()} != {i()}[{self.integer(0, 9)}]) {{\n        return -{self.integer(1, 9)};\n    }}\n",
            lambda: f"{i()} = {{'{i()}': [{self.integer(0, 9)}, 0x{self.integer(0, 65535):04X}], \"{i()}\": None}}\n",
            lambda: f"@{i()}\ndef {i()}(self, *{i()}, **kw):\n\t'''{self.pick(SENTENCES)}'''\n",
            lambda: f"std::{i()}<{i()}>&& {i()}{{{self.integer(0, 9)}u}};  // {i()}\r\n",
            lambda: self.pick(CODE),
        ])()

    def soup(self, low, high):
        """Characters of every kind side by side."""
        out = []
        for _ in range(self.integer(low, high)):
            kind = self.integer(0, 11)
            if kind < 4:
                out.append(self.word(self.pick(BLOCKS)[0], 1, 3))
            elif kind < 6:
                out.append(self.ascii_word(1, 5))
            elif kind == 6:
                out.append(self.digits())
            elif kind == 7:
                out.append(self.pick(SPACES))
            elif kind == 8:
                out.append(self.pick(EMOJI))
            elif kind == 9:
                out.append(self.pick(MARKS))
            elif kind == 10:
                out.append(self.pick(CONTRACTIONS))
            else:
                out.append(chr(self.integer(0, 0x7F)))
        return "".join(out)


def fixed_strings():
    """Hand-picked edges."""
    out = ["", " ", "  ", "\n", "\r\n", "\r", "\t", "\0", "a", "A", "\u00e9", "e\u0301", "\u00df", "\u0130i\u0131I", "\u01c5\u01c8\u1f88",
           "a\0b", "\x01\x02\x7f\x80\x9f", "\x1ca\x1db\x1ec\x1fd", "\x1c \x1f", "\u0085x\u0085", "a\u180eb", "\ufeffBOM", "x\ufeff", "a\u200bb",
           "\u00ad\u2060\u200e\u200f\u202a\u202c", "\ufffd", "\u202e abc",
           "a" * 300, "ab" * 200, "=" * 80, "-" * 63 + ">", "." * 129, "!?" * 33, " " * 100 + "x", "x" + " " * 100, "\n" * 40, " \n" * 20,
           "\t" * 17 + "x", "0" * 50, "1234567890" * 4, "3.14159265358979", "1,000,000", "-1e+10", "0x7fffffff", "１２３４", "٣٤٥٦٧",
           "x   y", "x    ", "    x", "x \n y", "x\n\n\ny", "x \r\n\r\n y", "x\n  \n  y", " \u00a0 x", "\u3000\u3000x", "a\u00a0\u00a0b",
           "a \u2003 b", "\u2028\u2029", "a\x0b\x0cb", "can't", "CAN'T", "we'LL", "I'VE've", "'s's's", "it\u2019s", "d'été", "o'clock",
           "'S\u017f", "x'\u017f", "\u212a'd", "ça", "naïve", "ＡＢＣａｂｃ", "ǅ", "ΑΒΓ'Σς", "ﬁnance", "Ⅷ", "½", "①②", "²³", "1st2nd", "a1b2c3",
           "foo_bar__baz", "__init__", "C++", "C#", "a/b//c///d\n/", "path/to\\file", "//\n//\n", "***", "###", "```py\n", "{{x}}", "${y}", "<a href=''>",
           "!\n!\r\n", "?!\n\n", ".\n\n\n", " .\n", "。\n", "）\n\n", "$$$\n", "a,b;c:d", "\"quoted\"", "“curly”", "‘single’", "«guillemets»",
           "漢字かな交じり文", "一龥〇々〻", "ヿゟ゠ー・", "中文 English 混排 test", "한국어English", "123中456", "中1文2", "你好，世界！", "。。。", "「」『』", "你'll",
           "ไทย123", "हिन्दी१२३", "العربية١٢٣", "עברית123", "\u0627\u0644\u0651\u064e", "\u202bRTL\u202c", "á'á", "e\u0301'll"]
    return list(dict.fromkeys(out)) + NFC_CASES + EMOJI + SENTENCES + CODE


def special_strings(added, maker, count):
    """Added tokens alone, doubled, inside words, cut short, in other case, between spaces."""
    out = []
    for token in added[:40]:
        out += [token, token + token, f"a{token}b", f" {token} ", f"\n{token}\n", token[:-1], token[1:], token + "x", f"x {token}{token} y"]
    while len(out) < count:
        parts = []
        for _ in range(maker.integer(2, 6)):
            token = maker.pick(added)
            parts.append(maker.pick([token, token, token[: maker.integer(1, len(token))], token.upper(), maker.ascii_word(), maker.spaces(),
                                     maker.pick(SENTENCES)[:20], maker.pick(EMOJI)]))
        out.append("".join(parts))
    return out[:count]


def general_strings(count):
    """At least `count` different strings, the same for every tokenizer."""
    m = Maker("general")
    out = fixed_strings()
    for name, _, _ in BLOCKS:
        for _ in range(3):
            out.append(" ".join(m.word(name) for _ in range(m.integer(1, 6))))
        out.append(m.ascii_word() + m.word(name) + m.digits() + m.word(name) + "'s " + m.word(name))
    for first in CONTRACTIONS:
        out += [m.ascii_word() + first, m.ascii_word() + first + m.ascii_word(), m.word("cyrillic") + first, " " + first, first + " ", m.digits() + first]
    for space in SPACES:
        out += [space, "a" + space + "b", space + "a", "a" + space, "a" + space + space + "b", "1" + space + "2", "." + space + "x", space + "\n" + space + "x",
                "中" + space + "文"]
    lines = [line.strip() for line in kjv().splitlines() if line.strip()]
    while len(out) < count:
        kind = m.integer(0, 11)
        if kind < 4:
            out.append(m.soup(1, 12))
        elif kind == 4:
            out.append("".join(m.pick([m.ascii_word, m.digits, m.spaces])() for _ in range(m.integer(2, 12))))
        elif kind == 5:
            out.append("".join(m.code() for _ in range(m.integer(1, 3))))
        elif kind == 6:
            base = m.pick([m.ascii_word(1, 5), m.word("greek", 1, 3), m.word("devanagari", 1, 3), m.word("hangul", 1, 2)])
            out.append("".join(c + "".join(m.pick(MARKS) for _ in range(m.integer(0, 3))) for c in base))
        elif kind == 7:
            out.append(m.pick(SENTENCES) + m.spaces() + m.pick(SENTENCES))
        elif kind == 8:
            out.append("".join(m.word(m.pick(["cjk_core", "cjk", "hiragana", "katakana", "hangul", "fullwidth"]), 1, 6) + m.pick(["", "，", "。", " ", m.digits()])
                               for _ in range(m.integer(1, 6))))
        elif kind == 9:
            out.append("".join(m.pick(EMOJI) + m.pick(["", " ", "\u200d", "\ufe0f", m.ascii_word(1, 3)]) for _ in range(m.integer(1, 6))))
        elif kind == 10:
            out.append(m.pick(lines))
        else:
            out.append("".join(m.pick("bcdfghjklmnpqrstvwxzBCDFGHJKLMNPQRSTVWXZaeiouAEIOU") for _ in range(m.integer(10, 60))))
    return list(dict.fromkeys(out))


def long_text(size):
    """About `size` bytes of mixed text, as a list of 200 parts."""
    m = Maker("long")
    verses = kjv().split("\n")
    pieces, total, at = [], 0, 0
    while total < size:
        kind = m.integer(0, 9)
        if kind < 5:
            n = m.integer(5, 25)
            piece = "\n".join(verses[at:at + n]) + "\n"
            at = (at + n) % len(verses)
        elif kind < 7:
            piece = "".join(m.code() for _ in range(m.integer(3, 15)))
        elif kind == 7:
            piece = "\n".join(m.pick(SENTENCES[14:44]) for _ in range(m.integer(2, 8))) + "\n\n"
        elif kind == 8:
            piece = "".join(m.word("cjk_core", 2, 12) + m.pick("，。；！？\n") for _ in range(m.integer(4, 20)))
        else:
            piece = m.soup(10, 60) + m.spaces()
        pieces.append(piece)
        total += len(piece.encode())
    text = "".join(pieces)
    step = -(-len(text) // 200)
    return [text[i:i + step] for i in range(0, len(text), step)]
