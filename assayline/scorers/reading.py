"""Reading of answers for numbers and letters: signs, the words before an answer, and where it ends."""

import re
from functools import lru_cache
from unicodedata import normalize

SIGNS = str.maketrans("−⁻％：＝（）．，＄٫٬⁄", "--%:=().,$.,/") | {
    start + place: 65 + place % 26 for start in (0xFF21, 0x24B6, 0xFF41) for place in range(26)
}
"""Signs and letters of other scripts and of full width, as those of ASCII."""
SUPERSCRIPT = re.compile(r"⁻?[⁰¹²³⁴-⁹]+")
DASH_BEFORE_DIGIT = re.compile(r"(?<![^\s=(:：$*])[–‑﹣－](?=\d)")


def plain_signs(text: str) -> str:
    """Write digits, letters and signs as an English keyboard has them: ４２, ٤٢ and ४२ are 42, ½ is 1/2, 10⁶ is 10^6.

    − is a minus, and so is an en dash before a digit if no digit is before it.
    """
    if text.isascii():
        return text
    text = re.sub("[¼-¾⅐-⅞]", lambda part: f" {normalize('NFKC', part[0])}", text)
    text = SUPERSCRIPT.sub(lambda power: "^" + normalize("NFKC", power[0]), text)
    text = re.sub(r"[^\W\x00-\x7f\D]", lambda digit: str(int(digit[0])), text)
    return DASH_BEFORE_DIGIT.sub("-", text).translate(SIGNS)


QUESTION = (
    "question|q|problem|exercise|frage|aufgabe|pregunta|pergunta|domanda|vraag|pytanie|otázka|fråga|soru|pertanyaan|swali|"
    "câu hỏi|вопрос|задача|питання|सवाल|प्रश्न|প্রশ্ন|คำถาม|ప్రశ్న|سؤال|السؤال|پرسش|שאלה|问题|問題|质问|質問|问|問|질문|문제"
)
NEXT_QUESTION = re.compile(
    rf"\n[ \t>#*_]*(?:(?:next |new )?(?:{QUESTION})\s?(?:no\.? ?|#)?\d{{0,3}}[*_ \t]*[:：](?!//)"
    r"|(?:user|human|用户|用戶|### ?(?:instruction|human|user))[*_ \t]*[:：])"
    r"|(?<=[.!?\d])[ \t]+(?:question|q) ?\d{0,3}:(?=\s)"
    r"|<\|(?:im_end|im_start|eot_id|end_of_text|endoftext|end|user|start_header_id)\|>|<(?:end|start)_of_turn>|</s>"
    r"|\[/?inst\]",
    re.IGNORECASE,
)
"""A new question at the start of a line, or the mark of another turn."""


def cut_next_question(text: str) -> str:
    """Return the text up to a new question or turn, with which a model answers what nobody asked.

    A question with which the text begins is the one that was asked.
    """
    if (mark := NEXT_QUESTION.search(text)) is None:
        return text
    start = len(text) - len(text.lstrip())
    while mark is not None:
        if text[start : mark.start()].strip(" \n\t>#*_"):
            return text[: mark.start()]
        mark = NEXT_QUESTION.search(text, mark.end())
    return text


NOUN = r"\s+(?:answer|option|choice|letter)"
WORDS = (
    rf"final{NOUN}|correct{NOUN}|right{NOUN}|best{NOUN}|answer|antwort|lösung|losung|réponse|reponse"
    r"|respuesta|resposta|risposta|antwoord|odpowiedź|odpověď|svaret|svar|jawaban|jibu|cevap|yanıt|câu trả lời|đáp án"
    r"|ответ|відповідь|الإجابة|الاجابة|الجواب|پاسخ|תשובה|उत्तर|जवाब|উত্তর|คำตอบ|సమాధానం|答案|答え|回答|正解|정답|답"
)
IS = r"(?:\s+is|['’]s|\s+must\s+be|\s+has\s+to\s+be)\b"
IT = f"it{IS}|this{IS}"
KEY = r"(?:choice|option|letter|final_answer|answer)[\"'>]"
AFTER = (
    r"(?:\s+(?:correcta|correta|corretta|correcte|finale?)\b)?[\"'>*_]*"
    r"(?:,?\s*(?:therefore|thus|hence|then|so|daher|somit|donc|portanto|quindi)\b,?)?"
    r"(?:\s*(?:(?:is|was|would\s+be|should\s+be|must\s+be|ist|lautet|est|es|jest|adalah|ni|är|to)\b"
    r"|é|è|e'|это|là|是|为|為|은|는|は|คือ|هي|هو|হলো|হল))?(?:\s*[:=]|\s+[—–-]+\s)?"
)
"""After the words, an announcement has at most a verb and a colon."""


@lru_cache
def compile_announcement(more: str) -> re.Pattern[str]:
    """Return the pattern of the words that announce an answer in English and 25 other languages, for lower case.

    `more` are alternatives to the words. The pattern begins with characters, not conditions, which is fast.
    """
    return re.compile(rf"(?:{WORDS}|'{KEY}|\"{KEY}|<{KEY}|{more}){AFTER}")


def find_announcements(plain: str, more: str) -> list[int]:
    """Return where the words end that announce an answer: "the answer is", "Respuesta:", a tag, a JSON key."""
    low = plain.lower() if "İ" not in plain else plain.replace("İ", "I").lower()
    ends = []
    for match in compile_announcement(more).finditer(low):
        before = low[match.start() - 1] if match.start() else " "
        if before != "/" and not (before.isalnum() and low[match.start()] < "\u0250"):
            ends.append(match.end())
    return ends
