-- Digits, letters and signs of other scripts as those of an English keyboard. A text in ASCII is not searched.
create or replace macro internal.plain_signs(text) as
case
    when regexp_matches(text, '[^\x00-\x7f]')
    then translate(
        regexp_replace(
            replace(
                regexp_replace(
                    replace(replace(replace(replace(replace(replace(replace(
                        text, '½', ' 1/2'), '⅓', ' 1/3'), '⅔', ' 2/3'), '¼', ' 1/4'), '¾', ' 3/4'), '⅛', ' 1/8'), '⅕', ' 1/5'),
                    '(⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)', '^\1', 'g'
                ),
                '⁄', '/'
            ),
            '(^|[\s=(:：$*])[–‑﹣－](\d)', '\1-\2', 'g'
        ),
        '−⁻％：＝（）．，＄٫٬ＡＢＣＤＥＦＧＨＩＪ⁰¹²³⁴⁵⁶⁷⁸⁹０１２３４５６７８９٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹०१२३४५६७८९০১২৩৪৫৬৭৮৯๐๑๒๓๔๕๖๗๘๙'
        || '੦੧੨੩੪੫੬੭੮੯૦૧૨૩૪૫૬૭૮૯୦୧୨୩୪୫୬୭୮୯௦௧௨௩௪௫௬௭௮௯౦౧౨౩౪౫౬౭౮౯೦೧೨೩೪೫೬೭೮೯൦൧൨൩൪൫൬൭൮൯໐໑໒໓໔໕໖໗໘໙၀၁၂၃၄၅၆၇၈၉០១២៣៤៥៦៧៨៩',
        '--%:=().,$.,ABCDEFGHIJ' || repeat('0123456789', 17)
    )
    else text
end;

comment on macro internal.plain_signs is 'A text with the digits, brackets and signs of other scripts and of full width as in ASCII: ４２, ٤٢, ४२ and ๔๒ are 42, ١٬٢٣٤ is 1,234; ½ is 1/2, 10⁶ is 10^6, − is a minus, and so is an en dash before a digit, if no digit is before it.';
