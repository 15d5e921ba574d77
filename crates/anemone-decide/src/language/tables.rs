//! Words, letters and ranges that tell languages and scripts apart.
//!
//! Data of laya 0.4.15 (Apache-2.0, Convai Innovations and Laya contributors), in another form; see NOTICE.

/// Code points of the named scripts other than Latin, first and last of each range.
pub(super) static SCRIPTS: &[(&str, &[(u32, u32)])] = &[
    ("greek", &[(0x370, 0x3FF), (0x1F00, 0x1FFF)]),
    ("cyrillic", &[(0x400, 0x52F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F)]),
    ("armenian", &[(0x530, 0x58F)]),
    ("hebrew", &[(0x590, 0x5FF)]),
    ("arabic", &[(0x600, 0x6FF), (0x750, 0x77F), (0x8A0, 0x8FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFF)]),
    ("devanagari", &[(0x900, 0x97F), (0xA8E0, 0xA8FF)]),
    ("bengali", &[(0x980, 0x9FF)]),
    ("gurmukhi", &[(0xA00, 0xA7F)]),
    ("gujarati", &[(0xA80, 0xAFF)]),
    ("oriya", &[(0xB00, 0xB7F)]),
    ("tamil", &[(0xB80, 0xBFF)]),
    ("telugu", &[(0xC00, 0xC7F)]),
    ("kannada", &[(0xC80, 0xCFF)]),
    ("malayalam", &[(0xD00, 0xD7F)]),
    ("sinhala", &[(0xD80, 0xDFF)]),
    ("thai", &[(0xE00, 0xE7F)]),
    ("lao", &[(0xE80, 0xEFF)]),
    ("tibetan", &[(0xF00, 0xFFF)]),
    ("myanmar", &[(0x1000, 0x109F)]),
    ("georgian", &[(0x10A0, 0x10FF)]),
    ("ethiopic", &[(0x1200, 0x137F)]),
    ("khmer", &[(0x1780, 0x17FF)]),
    ("hangul", &[(0x1100, 0x11FF), (0x3130, 0x318F), (0xAC00, 0xD7AF)]),
    ("kana", &[(0x3040, 0x309F), (0x30A0, 0x30FF), (0x31F0, 0x31FF)]),
    ("han", &[(0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF)]),
];

/// Common words of each language, in the order that breaks ties; English is the first.
pub(super) static STOP_WORDS: &[(&str, &str)] = &[
    (
        "en",
        "after already always and any are aren as at be because been before being between both but can \
        could couldn didn didnt does doesn doesnt doing done dont down during each ever every few for \
        from has hasn have haven havent here him his how i if in into is isn isnt it ive many might much \
        must never nor not of on only onto our please shall she should some than that thats the their \
        them then there these they this those through to too until very was wasn wasnt we were weren \
        what whats when where which while who whom why will with within without won wont would wouldn \
        yet you your youre yours",
    ),
    (
        "fr",
        "alors au aux avec bien bonjour ce ces cette comment dans des deux dois doit donc du elle elles \
        est et fait fois il ils je jour jours la le les ma mais merci mes mois mon nous ont ou pas peut \
        peux plus pour pourquoi quand que qui sa ses sont sur ta tes ton tous tout toute trois très tu \
        une veut veux vous être",
    ),
    (
        "de",
        "aber auch auf aus bei bitte das dem den der dich die diese diesen dieser dieses dir ein eine \
        einem einen einer für gibt habe haben heute ich im in ist jetzt kann kannst mein meine meinem \
        meinen meiner mich mir mit nach nicht noch oder sich sind und uns von wann was welche werden wie \
        wir wird wo wurde zu zum zur",
    ),
    (
        "es",
        "al algo aquí aunque como con cuando del donde dos el entre es esa ese eso esta este esto está \
        fue fueron gracias han hay hemos hoy la las le les lo los mi muy más nada necesito ni nos para \
        pero por porque puede pueden que quiero se ser sobre son su sus también tengo tiene tienen todo \
        tres tu un una y ya",
    ),
    (
        "pt",
        "agora ainda alguem alguém ali antes ao aos aqui as até boa cadê com como consigo da das depois \
        deu do dois dos e em entao então era esta estamos estava este estou está eu ficou fiz foi \
        gostaria hoje isso isto ja já mais mas meu meus minha minhas muito na nada nao nas nenhum \
        nenhuma ninguem ninguém noite nos nossa nosso não o obrigada obrigado olá onde ontem os para \
        pela pelo pode podem por porque pra preciso quando que quero sao se ser seu sou sua são tambem \
        também tarde tem tenho três tudo tá um uma vc vcs voce voces você vocês é",
    ),
    (
        "it",
        "abbiamo adesso agli alla alle anche ancora avete che ci ciao col come con da dagli dal dalla \
        dallo degli dei del della delle dello deve devo devono di dove e ed era fra già gli grazie ha \
        hai hanno ho ieri il la le lo mai mi mia mio molto ne negli nel nell nella non o oggi per perche \
        più poco quando questa questo scusa sempre si sono stata stato su sua sul sulla sulle tra tuo un \
        una uno voglio vorrei è",
    ),
    ("nl", "aan dat deze door een het is maar met naar niet ook op te van voor worden wordt zijn"),
    (
        "sv",
        "appen aterbetala aterbetalning att behover behöver blivit debiterade dessa detta faktura fel \
        från får ganger gång gånger gör göra hittar hjalp hjalpa hjälp hjälpa här installningarna \
        installningen inställningarna inställningen inte jag kommer kraschar kvittot losenord lösenord \
        mig min mitt måste nar när nästa och också om oppnar paket ska skicka skulle sparningen \
        spårningen säger till tva två upp uppdaterats utan vi vill är återbetala återbetalning öppnar",
    ),
    (
        "ro",
        "aceasta această acest acesta acum ale care dar din după este foarte fost fără lui mi nu pentru \
        până sunt să trebuie vreau vă în și ți",
    ),
    (
        "bn",
        "abar ajke akhon amader amake amar ami amra apnake apnar apnara apni ar asbe bhai bhalo bolte \
        bolun chai chaina dhonnobad dilam dite diye diyechi dorkar duibar ei eita ekbar ekhon ekhono \
        ekta ferot geche gese hobe hocche hoise hoye hoyeche hoyni jabe jodi jonno kalke keno keu kharap \
        khub ki kibhabe kichu kintu kivabe kobe kokhon korbo korchi kore koreche korechi koren korlam \
        korsi korte korun kothay koto lagbe moddhe nai niye oi oita onek ota pabo paini parben parbo \
        parchi parchina peyechi sathe shathe shob shomossa somossa tader tahole taka theke tomake tomar \
        tomra tumi valo",
    ),
    (
        "az",
        "amma ancaq artiq artıq bir biz bu cox daha deyil də eger görə həm hər ile ilə isə kimi lakin mən \
        nə olan olmasa olub onlar siz sonra sən ucun var ve və yalniz yalnız yox yoxdur çox üçün əgər",
    ),
];

/// Words that make two or three Swedish.
pub(super) static SHORT_SWEDISH: &str = "abonnemanget aterbetalning atkomst behover behöver betalningen fakturan felmeddelande glomt \
    glömt inloggningen installningen inställningen kvitto kvittot losenord lösenord sparningen \
    spårningen återbetalning åtkomst";

/// Words Nordic languages share.
pub(super) static NORDIC: &str = "får hej ja jo kommer mig min nej om skulle tack vi";

/// Words of other languages that English text holds too.
pub(super) static COLLISIONS: &str = "care come do im per plus son todo";

/// Letters English does without.
pub(super) static FOREIGN_LETTERS: &str =
    "ßàáâãäåæçèéêëìíîïñòóôõöøùúûüýÿāăąćčďđēęěğģīıķļłńņňőœřśşšţťūůűźżžșțə";
