-- The words before an answer that is stated. A macro without parameters is a constant: its pattern is compiled once.
create or replace macro internal.before_statement() as
'(?:^|[^/])(?:(?i:\b(?:(?:final|correct|right|best)\s+(?:answer|option|choice|letter)|answer'
|| '|antwort|l[öo]sung|r[ée]ponse|respuesta|resposta|risposta|antwoord|odpowiedź|odpověď|svaret|svar|jawaban|jibu'
|| '|cevap|yanıt|câu trả lời)|đáp án|ответ|відповідь|الإجابة|الاجابة|الجواب|پاسخ|תשובה|उत्तर|जवाब|উত্তর|คำตอบ|సమాధానం'
|| '|答案|答え|回答|正解|정답|답|\b(?:it|this)(?:\s+is|''s|’s|\s+must\s+be|\s+has\s+to\s+be)\b)'
|| '|["''<](?i:choice|option|letter|final_answer|answer)["''>])'
|| '(?i:\s+(?:correcta|correta|corretta|correcte|finale?)\b)?["''>*_]*(?i:,?\s*(?:therefore|thus|hence|then|so|daher|somit|donc|portanto|quindi)\b,?)?'
|| '(?:\s*(?i:(?:is|was|would\s+be|should\s+be|must\s+be|ist|lautet|est|es|jest|adalah|ni|är|to)\b'
|| '|é|è|e''|это|là|是|为|為|은|는|は|คือ|هي|هو|হলো|হল))?(?:\s*[:=]|\s+[—–-]+\s)?';

comment on macro internal.before_statement is 'Pattern of what is before a stated answer, in English and 25 other languages: "the answer is", "Correct option:", "Respuesta:", "答案是", "it must be", a tag <answer> or a JSON key of such a name. It has no group.';
