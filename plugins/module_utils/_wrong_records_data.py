# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What published wheels really have where their own RECORD is wrong. Private to the collection.

Written by tools/wrong_records from the wheels themselves; do not edit it.
"""

from __future__ import annotations

# In place of a digest: RECORD lists a file that the wheel does not have.
NOT_IN_WHEEL = ""

# {distribution==version: {path below site-packages: digests of the published file, as RECORD spells them}}
# There are several where wheels for several systems share the path.
SHIPPED: dict[str, dict[str, tuple[str, ...]]] = {
    "pynvvideocodec==1.0.2": {
        "PyNvVideoCodec-1.0.2.dist-info/METADATA": ("RhZCAxDV2fBXN2jD8--DMpjkqseJRkvy-mH3vXmRPfs",),
        "PyNvVideoCodec/_PyNvVideoCodec.cpython-310-x86_64-linux-gnu.so": (
            "86Cqhvs5fujwnVs7jgZT53JiHG1rohQhcdD95KHSf6k",
        ),
        "PyNvVideoCodec/__init__.py": ("0W_CIP21BPG9BH1h_PxSEW5oH3wKZRLhSDhYghBwcHQ",),
    },
    "pynvvideocodec==2.0.0": {
        "PyNvVideoCodec./libXau-154567c4.so.6.0.0": ("",),
        "PyNvVideoCodec./libcuda-40d19bb1.so": ("",),
        "PyNvVideoCodec./libcudart-c64a25f3.so.12.3.101": ("",),
        "PyNvVideoCodec./libdrm-b0291a67.so.2.4.0": ("",),
        "PyNvVideoCodec./libxcb-5ddf6756.so.1.1.0": ("",),
        "PyNvVideoCodec./libxcb-shape-7716c890.so.0.0.0": ("",),
        "PyNvVideoCodec./libxcb-shm-0be6dfbf.so.0.0.0": ("",),
        "PyNvVideoCodec./libxcb-xfixes-6de855b8.so.0.0.0": ("",),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-310-x86_64-linux-gnu.so": (
            "eYm3R8_wqL65AHYdoC6AJM1sk5lkw3NuoQco7f48LSo",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-311-x86_64-linux-gnu.so": (
            "BumcSU6lqJdjt-ERb3J_paTtwsKq-XXuOEsccGWhdGM",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-312-x86_64-linux-gnu.so": (
            "tq_DjFhWXW80Iia0PIfwO5kdw5XE5j_8w2vewfyyU6s",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-313-x86_64-linux-gnu.so": (
            "7a2CSBafy6kR33BNpn12kAtLgRf9a31raWgjtJQP5-8",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-310-x86_64-linux-gnu.so": (
            "GQ400uhQ2O42r-AGWkuiLas2Mx5mheIEm3Sf4uKic3g",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-311-x86_64-linux-gnu.so": (
            "MbCuIAeU7rfAOCU68tcnvz01XS3b0YcDSvZrwSnpt4s",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-312-x86_64-linux-gnu.so": (
            "UtKe0O7v07Q5jAjDEhOun9ckM2YRWl4cHYj1D0woF9A",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-313-x86_64-linux-gnu.so": (
            "wa6J9lUNEvzc-OC8HevuFbgqKHKUzX2d1fmswXYb6NI",
        ),
    },
    "pynvvideocodec==2.0.1": {
        "PyNvVideoCodec2.0.1.dist-info/METADATA": ("",),
        "PyNvVideoCodec2.0.1.dist-info/WHEEL": ("",),
        "PyNvVideoCodec2.0.1.dist-info/licenses/LICENSE.txt": ("",),
        "PyNvVideoCodec2.0.1.dist-info/licenses/NOTICES.txt": ("",),
        "PyNvVideoCodec2.0.1.dist-info/top_level.txt": ("",),
        "PyNvVideoCodecPyNvVideoCodec121.cpython-310-x86_64-linux-gnu.so": ("",),
        "PyNvVideoCodecPyNvVideoCodec121.cpython-311-x86_64-linux-gnu.so": ("",),
        "PyNvVideoCodecPyNvVideoCodec121.cpython-312-x86_64-linux-gnu.so": ("",),
        "PyNvVideoCodecPyNvVideoCodec121.cpython-313-x86_64-linux-gnu.so": ("",),
        "PyNvVideoCodecPyNvVideoCodec130.cpython-310-x86_64-linux-gnu.so": ("",),
        "PyNvVideoCodecPyNvVideoCodec130.cpython-311-x86_64-linux-gnu.so": ("",),
        "PyNvVideoCodecPyNvVideoCodec130.cpython-312-x86_64-linux-gnu.so": ("",),
        "PyNvVideoCodecPyNvVideoCodec130.cpython-313-x86_64-linux-gnu.so": ("",),
        "PyNvVideoCodecVersionCheck.cpython-310-x86_64-linux-gnu.so": ("",),
        "PyNvVideoCodecVersionCheck.cpython-311-x86_64-linux-gnu.so": ("",),
        "PyNvVideoCodecVersionCheck.cpython-312-x86_64-linux-gnu.so": ("",),
        "PyNvVideoCodecVersionCheck.cpython-313-x86_64-linux-gnu.so": ("",),
        "PyNvVideoCodec__init__.py": ("",),
        "PyNvVideoCodecdecoders/SimpleDecoder.py": ("",),
        "PyNvVideoCodecdecoders/ThreadedDecoder.py": ("",),
        "PyNvVideoCodecdecoders/__init__.py": ("",),
        "PyNvVideoCodeclibavcodec.so": ("",),
        "PyNvVideoCodeclibavcodec.so.": ("",),
        "PyNvVideoCodeclibavcodec.so.61": ("",),
        "PyNvVideoCodeclibavcodec.so.61.3.100": ("",),
        "PyNvVideoCodeclibavdevice.so": ("",),
        "PyNvVideoCodeclibavdevice.so.61": ("",),
        "PyNvVideoCodeclibavdevice.so.61.1.100": ("",),
        "PyNvVideoCodeclibavfilter.so": ("",),
        "PyNvVideoCodeclibavfilter.so.": ("",),
        "PyNvVideoCodeclibavfilter.so.10": ("",),
        "PyNvVideoCodeclibavfilter.so.10.1.100": ("",),
        "PyNvVideoCodeclibavformat.so": ("",),
        "PyNvVideoCodeclibavformat.so.": ("",),
        "PyNvVideoCodeclibavformat.so.61": ("",),
        "PyNvVideoCodeclibavformat.so.61.1.100": ("",),
        "PyNvVideoCodeclibavutil.so": ("",),
        "PyNvVideoCodeclibavutil.so.": ("",),
        "PyNvVideoCodeclibavutil.so.59": ("",),
        "PyNvVideoCodeclibavutil.so.59.8.100": ("",),
        "PyNvVideoCodeclibswresample.so": ("",),
        "PyNvVideoCodeclibswresample.so.3": ("",),
        "PyNvVideoCodeclibswresample.so.3.9.100": ("",),
        "PyNvVideoCodeclibswresample.so.5": ("",),
        "PyNvVideoCodeclibswresample.so.5.1.100": ("",),
        "PyNvVideoCodeclibswscale.so": ("",),
        "PyNvVideoCodeclibswscale.so.": ("",),
        "PyNvVideoCodeclibswscale.so.8": ("",),
        "PyNvVideoCodeclibswscale.so.8.1.100": ("",),
        "PyNvVideoCodectranscoder/Transcoder.py": ("",),
        "PyNvVideoCodectranscoder/__init__.py": ("",),
    },
    "pynvvideocodec==2.0.2": {
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-310-x86_64-linux-gnu.so": (
            "22ofQArzMReae4ZPalyNfrn9KqKUvK-hgIySwn1_Riw",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-311-x86_64-linux-gnu.so": (
            "XO-gz4Ahp37rd26x9_U6QuIuyifH735HIPizRICjoFg",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-312-x86_64-linux-gnu.so": (
            "5XWAsAZgusvsb8n_NtRizkzjp94trYmfHzf0EFXwHqo",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-313-x86_64-linux-gnu.so": (
            "JVq7TIrstEd0x0iY4PH_SB64bw_KpceBNjpDHxev7pU",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-310-x86_64-linux-gnu.so": (
            "aXT9KbdgIiTGlqqzDoTF7UErBNkH75OteMtQLuQJZUw",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-311-x86_64-linux-gnu.so": (
            "djqUyB6AOwUDNpwb_Wslxge90gIS5lRfYz4SzVPCblo",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-312-x86_64-linux-gnu.so": (
            "2CiQCRa116uuyizmgv9AJyd3MdSWySotdwgvo3j8rRE",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-313-x86_64-linux-gnu.so": (
            "YwGxifsaDivzTmRCggS1h6T1kAwHUc-NSUybKy_X5Os",
        ),
    },
    "pynvvideocodec==2.0.3": {
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-310-aarch64-linux-gnu.so": (
            "xHVkfmJkfrhlWPAbZtcQEY08e3lK0XpOJwlCtfiuMr4",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-310-x86_64-linux-gnu.so": (
            "xJjhU90MHKy1wsFh9GMGcHy66P817S3mgXF9uIyZdwk",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-311-aarch64-linux-gnu.so": (
            "v0I_8aLIP8XXjrVFYiUGP6GzxPjKDDk308eK_z8E8xw",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-311-x86_64-linux-gnu.so": (
            "bsJv0_M029UT58pLFRuLFk7Y5UhAjAro3VZxsjjYu6I",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-312-aarch64-linux-gnu.so": (
            "dT1o7F2KELDb25AnlATWEYFNh5Ue0z0DW1DIxm5x2xA",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-312-x86_64-linux-gnu.so": (
            "iNX0hl8WJJmzFKQvrmzNOaegUr2TivhVk_MUFVOYQn4",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-310-aarch64-linux-gnu.so": (
            "-4TLTGYOb6INqr9DidEml8OnIMEnjCAcaRFmgowpQsU",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-310-x86_64-linux-gnu.so": (
            "42_L7pCMqKuMknG-G1G8Dj7q52aHzv0dOvcW77Q9GKw",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-311-aarch64-linux-gnu.so": (
            "p0HRJodQvfG8HNuPGCuYVj8cJRd7_ZNaI9cRXB3RcCw",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-311-x86_64-linux-gnu.so": (
            "lpTemIffICJnnMvqno5ek3dBpq-VsB0MnJlyBkp0Ae8",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-312-aarch64-linux-gnu.so": (
            "zohkeDhkF7ZFENRWdIbNywJDJxXCeok4dWg45q0ezB0",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-312-x86_64-linux-gnu.so": (
            "f8JUKxIsoGbyu_0Yq7hmIafInA9-4RORUiMduw-SpXg",
        ),
    },
    "pynvvideocodec==2.0.4": {
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-310-aarch64-linux-gnu.so": (
            "9AaUWvg0_BjI5WpZImCk9OO4dMLTY6OxxB0PukIp__I",
            "YzmHCsP5jHUYI2f8R9nMEtARCwRXBuFxkMtXmUCa6qU",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-310-x86_64-linux-gnu.so": (
            "e0Y_gbK9zDndzLrFBat0PSfKzsCyO9NnCHZ1vu2XPSw",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-311-aarch64-linux-gnu.so": (
            "_z-FxY951KQSw9Y_3MpKYNN1vWNu5m6J6-AwL6kK5j8",
            "l8EYgMwU39GrK0EWt2XlwiL6FJanDoEwgCmu6XvAFBI",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-311-x86_64-linux-gnu.so": (
            "DPcXlo5iFn_H6lfp2QsNLmkjOpQZMPq2lgeuZkb9-FE",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-312-aarch64-linux-gnu.so": (
            "Ft23oVGQQcsNLNWVAsIgMvixDkIdFu7VHl_-YxZD7LQ",
            "kJM4XkkRAdqs_mluneEUUfmBT1ujkQHXsAATbGlTgGA",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-312-x86_64-linux-gnu.so": (
            "L7hfi80zwT4kDvKoxid_TVoCYLYp7PmiQqBPFAP1gqg",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-313-aarch64-linux-gnu.so": (
            "asgVTXEWNtQdRovkyL6rMYKn-XALtVOFg9Axp3KkLMY",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-313-x86_64-linux-gnu.so": (
            "sOM0hO7E3ySvLJBow9fKStktTZhTXT4GtojyfqqaBBs",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-314-aarch64-linux-gnu.so": (
            "ULH9ayHqpTcMxCZ6VD-NsCXcMaM_MQntC4v-JFB4z2I",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-314-x86_64-linux-gnu.so": (
            "JcS47UzMa2S44OVZn1gt9JHICQFjSkvSVj3RudXI-Mc",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-310-aarch64-linux-gnu.so": (
            "C3aZvMyeTQ86bFOCoLpvPZSsZWLfoa49w9X-UI_6ryo",
            "Ne81ip9wjqj_abtTOIvXJWRIiukXiRu9WqvDCdIPfCI",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-310-x86_64-linux-gnu.so": (
            "3UKQgPmTKQ5WPmR7r6KWjDR0h-f8K4ZybUJ-bc_ymZs",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-311-aarch64-linux-gnu.so": (
            "IrWRxICpq5O3cehJCENckL05Ag3YAtQQhG4pUNTNI10",
            "aqb_kLWWE9-rf6S7_C_34Tm4G1zbysbth9vfISkgJ2Q",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-311-x86_64-linux-gnu.so": (
            "qf_vGkfr5Ek3XHvvUjwn7alTLACGhxRnK8bWg5QO_5U",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-312-aarch64-linux-gnu.so": (
            "9-yZLePHJX9Ef6k2v9OG1ZeeFDbl18AOeoswgSR09Rg",
            "Yh5eZZEMC-wbGWDUmw044C_nOlEXBwMbhg6YfrCIfjU",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-312-x86_64-linux-gnu.so": (
            "FPEqeXfC9oH7AWk-QUNDCL-1zw4sMe0sKdEXYzfIZGI",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-313-aarch64-linux-gnu.so": (
            "MuS6RbTViH-98y7ssMtUaKZ1ecMvTEOe3h2CW7FrfuY",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-313-x86_64-linux-gnu.so": (
            "nlz4ed1FQLSo5RB1mDNLAJbVUdeRHSNc0WmlU7HPY2s",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-314-aarch64-linux-gnu.so": (
            "bvyW7n9KSfV1yQKz0zj_vFURvyKB-HPBtZeMAebZNq0",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-314-x86_64-linux-gnu.so": (
            "4wymG-LSU-96qe7S0rzkqLTG2HaF-WFuBaJ0VhykUbQ",
        ),
    },
    "pynvvideocodec==2.0.5": {
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-310-aarch64-linux-gnu.so": (
            "RbRJrojqyZltIuPEHfMIVnzvrkKvzJof1YcaEPyguuw",
            "n1B0bUO6JJoSW9qPOwUEAcIeVcM1tsqr4KgGQwHdnFg",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-310-x86_64-linux-gnu.so": (
            "zJDgY7fjIktgUJ9Y8yowiq5uC67zkASxuCOIjdyDJeo",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-311-aarch64-linux-gnu.so": (
            "BrErED4zZnHf_srxH-mCYAERjQDjLBEqHNs9akXJFdo",
            "mFYGheGpOXVGFe7fTCZpZiB8y0h16BtP8L-qtFI6smM",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-311-x86_64-linux-gnu.so": (
            "KOAb6kPwXzog5tcQvoYPwMrTN-Mb1VvjQ9bHu6yyxAo",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-312-aarch64-linux-gnu.so": (
            "jC9ttFDQoWopD-8c1V6X4Ak5gJP7KVoRZwOUpFebt1E",
            "jQLbGSUynWrCZJ-uZwpGkBdyvDn2uBErTCkM-E7JADY",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-312-x86_64-linux-gnu.so": (
            "vWFgWn_4TpDooadtV-QIEgTTsdZsuIkI0mrt8FA50Ww",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-313-aarch64-linux-gnu.so": (
            "7lcWg1dCto_U7OiE3cXV8EUjCFNPlVf0wUkyupgDW0E",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-314-aarch64-linux-gnu.so": (
            "4xL4KteDi3jYsyDrwfPnvJ15j1UNWI0a7bqSLZrU99U",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-310-aarch64-linux-gnu.so": (
            "0paKyrVt2csfmS2IdpFjD7POvWa3AMu3sh7_xoGPFbY",
            "4QBbqPmBEzhU4ktBxsakBeYtxC4YI1SKyymf8ECB8Ys",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-310-x86_64-linux-gnu.so": (
            "AWcFgQK0TcZBPZYDIf4-PxIhtMt7PHI68ml0Jw4L0Ew",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-311-aarch64-linux-gnu.so": (
            "I2_RK_Gvef16MqVpwphI1tijUbC18R7I6XIuUCQXkyg",
            "dNdaf3yv6Iocw8VvlEpWKjQIAWuzLSklHhv11Mfhg9E",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-311-x86_64-linux-gnu.so": (
            "BjHbBwd6HfPKLkoPUR0zGYkHfLqFcD0js3ohu96_X08",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-312-aarch64-linux-gnu.so": (
            "S2gmpt0pxUYDeTM8HTuGtajqgYgK0w52UfBdwXCzN3Y",
            "kRbBUr8r0HOfoXFiRwcQ9ifBOPTtmv3tkqRlGHKL97I",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-312-x86_64-linux-gnu.so": (
            "7iq-Z3YkAHsQ_09rniu4aiVEU3IQTiI5qudM6n7ZxZI",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-313-aarch64-linux-gnu.so": (
            "AoLjuC_WfXm_EU5BQn95FJe76WmasUzW91uG_C1sl4A",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-314-aarch64-linux-gnu.so": (
            "cRyCQIepmpz6BWLwfTjCuDvgGtdo8l9xylzstTx_fXs",
        ),
    },
    "pynvvideocodec==2.1.0": {
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-310-aarch64-linux-gnu.so": (
            "gSdImrNbvhyzDesin2WqU2V-Ra7JUJXrgw-bMXztJvI",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-310-x86_64-linux-gnu.so": (
            "vEgIIFSDf1x8Whk2vxT-DE7zS5rCYohFbUc6WSbMKYM",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-311-aarch64-linux-gnu.so": (
            "c6bkHgRXIVSCZUFX_IkizfEDbCD8XTpr_bOVVNwh_Js",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-311-x86_64-linux-gnu.so": (
            "RcYceFUG18Glq8TTaRwzvrDn9XUSk-fvik3lr_vwdQY",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-312-aarch64-linux-gnu.so": (
            "BTwbmu8Z5KfnvFNh-CQcNhn6MxTu047xflr9pQNbhg4",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-312-x86_64-linux-gnu.so": (
            "-gxDzDv8xvkGbjuUei_7ofEIjGWzPE8oXB6IbXI3Skk",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-310-aarch64-linux-gnu.so": (
            "DkXs637vc9bc_Gqf2Es9zD6Cy1JkNTCaGlxk8nSveSY",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-310-x86_64-linux-gnu.so": (
            "DHU5kCv1bIT3PS58f75L6dj_wlPOEhRRuUeFtl-LEcY",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-311-aarch64-linux-gnu.so": (
            "9jmc1-aLf9Eb9MDP__ui5G6v97Pzw_bTz8VB6lutfBU",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-311-x86_64-linux-gnu.so": (
            "3kydZF87qdVEwrA7rh1BBXB1F2Icu5wqBbUog2cT2S4",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-312-aarch64-linux-gnu.so": (
            "RgUE5GB01zccO2aqs2tO4xWrZQg0JC1Q41BO0dSjn-4",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-312-x86_64-linux-gnu.so": (
            "r4mWMdUIc90esdSIOUwLVbz1W8vAt2uccBgGaQ9gqEM",
        ),
    },
    "pynvvideocodec==2.2.0": {
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-310-aarch64-linux-gnu.so": (
            "cCcKoy1XdRGGdIVv8y2f8C3pbSHd4ae-p2cjXcTz4Ts",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-310-x86_64-linux-gnu.so": (
            "rrK4K2KjI-c6hgnpI9fKOnE4NGm4SdY0Z_jo1d_6Fz8",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-311-aarch64-linux-gnu.so": (
            "9NnPoRHoe5UmzbDvHmcg0JgsvlTnAm8qWLWmTFM4KC8",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-311-x86_64-linux-gnu.so": (
            "xAU31JZfn9sQCX3hFaGB0ZKINdd0_KVcJ6Lc-9ItB34",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-312-aarch64-linux-gnu.so": (
            "U_QIPnE5tVI_0E5yVOVy3SCjjMrImkzWQLQYiz7uLzs",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-312-x86_64-linux-gnu.so": (
            "pHYNI_kzJaMi_kvQqiDNR5nHSitMwtYNca61XEVOa74",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-313-aarch64-linux-gnu.so": (
            "KHz5v9Ifepk7ifqumsUVy6cYsfOqwh0x46Vwp-lBEzI",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-313-x86_64-linux-gnu.so": (
            "D9yXt-2YDP7rRECi5oDTPgnDCPPYtb64fL1IxSv4ocg",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-314-aarch64-linux-gnu.so": (
            "mVYDbCBe3O1d8RG6tLUdRbWNi9E5Z9YxRNco64TP7IA",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_121.cpython-314-x86_64-linux-gnu.so": (
            "En0_Fxv0HPKtR4CxSRwZSzfHERpg-VP3bb_55BeXEFQ",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-310-aarch64-linux-gnu.so": (
            "IIM6QvafCiX7AsOQQJHMCEjy0qvJxpIbevMouKb_bCs",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-310-x86_64-linux-gnu.so": (
            "A4HlCJVr_mgHIWOviO8k7OMAD3XqbJXLPuszHwJoQkE",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-311-aarch64-linux-gnu.so": (
            "UL6aEj8cOp0BE1ULY1LPDgeJUX1SP3AJRnoG_gkMJSc",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-311-x86_64-linux-gnu.so": (
            "lZUiyzoqwU21lFTW4iLASIe7GxwVAtVHJUhUGI3Uo2o",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-312-aarch64-linux-gnu.so": (
            "Xnv8fpB2bZ8pod6orb8Xvg_3pwDQYT_tWDa8oaGo0t8",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-312-x86_64-linux-gnu.so": (
            "xldbbG89Kc8WRM3J_-QPPPqh2dfUah33S8tetD5cmic",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-313-aarch64-linux-gnu.so": (
            "LBKY_UaQYE2cA6fYEocU4NWnmCvfqKuy-xoP26-xT4k",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-313-x86_64-linux-gnu.so": (
            "A4l8srDWIxaIX9eG3yw9cKXWOffn1ma9geTogVUy7hY",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-314-aarch64-linux-gnu.so": (
            "zWoUtukpUs4OHntphIq4DdPE7hOAEzRyaU2PiaXHalw",
        ),
        "PyNvVideoCodec/PyNvVideoCodec_130.cpython-314-x86_64-linux-gnu.so": (
            "a5j65KfMoo0YYNx_eFiQmpj4AakOcChDHhWP5shfroc",
        ),
    },
    "pynvvideocodec==2.2.2": {
        "pynvvideocodec-2.2.2.dist-info/METADATA": ("W7rOhCnTm31RY1VTBYNDRqsKuoC5kozaTppXk4WxXqw",),
    },
}
