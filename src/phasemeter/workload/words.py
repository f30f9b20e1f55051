"""256 plain English words: one byte picks one word.

Lives here: the list. Each word, with and without a space before it, is one token in byte-level BPE vocabularies trained on English
(checked against SmolLM2's 49152 pieces), so that a text's words count its tokens; what a server makes of them is measured, never assumed.
"""

from __future__ import annotations

WORDS: tuple[str, ...] = tuple(
    """
action activity age air animal apple area arm art artist baby back ball bank bill bird board body book box boy
bridge brother building business camera car case cell center chair change child church city class cloud cold college
company computer control cost country court culture data day death decision director doctor dog door drug earth
effect end energy event eye face fact family farm father field figure film fire fish food foot force form friend
game girl glass gold green ground group hair hand head health heart history home horse hospital hour house idea
image industry interest issue job kind king lake land language law leader letter level life light line list look lot
love machine man map market matter member message metal mind minute model moment money month mother mouth movie
music name nation nature need news night north note number ocean office official oil others pain paper parent part
party patient people person phone picture piece place plan player point policy position power practice price problem
product program project quality question race rate reason record report research result right risk river road role
room rule safety school season sense service show side site size skin snow son sound source space speech spring
square star state station step stone story street student study style sugar summer support surface system table
target tax teacher team test text theme theory thing time tower town train tree truth type unit value view voice
wall war water way week wife window winter woman word work worker world year
""".split()  # noqa: SIM905
)
