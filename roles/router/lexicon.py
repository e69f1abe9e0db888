"""The words that the classifier weighs: data only, in lower case without accents.

A line is ``weight: word, two words, …``; weights are log-odds: 3 settles a label alone, 2 is a good sign, 1 needs help.
Most words are English, then German, Spanish and French, then a few terms of scripts that use no spaces.
"""

from __future__ import annotations

from typing import Final

INTENTS: Final[dict[str, str]] = {
    "answer": """
        1: what, who, when, where, which, how many, how much, was, wer, wann, wo, wie viele, que, quien, cuando, donde,
           cuanto, qui, quand, combien, quel, quelle
        2: capital of, define, definition, meaning of, bedeutet, significa, signifie
    """,
    "explain": """
        2: explain, why, how does, how do, describe, difference between, compare, pros and cons, teach me, erklare,
           warum, wieso, unterschied, explica, explicame, por que, expliquer, explique, pourquoi
    """,
    "write": """
        2: write, draft, compose, poem, story, essay, letter, email, blog, slogan, rewrite, rephrase, paraphrase,
           schreibe, verfasse, gedicht, brief, escribe, redacta, poema, carta, ecris, redige, lettre
    """,
    "summarise": """
        4: summarise, summarize, summary, tldr, tl dr, key points, main points, condense, zusammenfassung, fasse,
           resumen, resumir, resumez, resumer
    """,
    "translate": """
        4: translate, translation, into english, into german, into french, into spanish, auf deutsch, ubersetze,
           ubersetzen, traduce, traducir, al espanol, traduis, traduire, en francais
    """,
    "extract": """
        2: extract, parse, list all, csv, table, fields, entities, convert to, format as, extrahiere, tabelle, extrae,
           tabla, extrais, tableau
        1: json
    """,
    "solve": """
        2: solve, calculate, compute, prove, derive, evaluate, simplify, berechne, lose, beweise, calcula, resuelve,
           demuestra, calcule, resous, demontre
        1: how long, find the, step by step, what is the value
    """,
    "program": """
        2: implement, refactor, debug, fix, function, script, unit test, compile, stack trace, code, programmiere,
           programm, funktion, funcion, fonction
        1: class, write a, python, javascript, rust, sql
    """,
    "plan": """
        2: plan, roadmap, schedule, strategy, steps to, milestones, itinerary, checklist, zeitplan, strategie,
           planifica, planifie, etapes
    """,
    "act": """
        3: search the web, look up, browse, fetch, download, upload, open the, execute, send an, send a, book a, delete,
           create a file, deploy, install, remind me, post to, publish, restart, suche im, schicke, losche, busca en,
           envia, borra, ejecuta, envoie, supprime
    """,
    "chat": """
        2: hello, hi, hey, thanks, thank you, good morning, how are you, bye, hallo, danke, hola, gracias, bonjour,
           merci
    """,
}

DOMAINS: Final[dict[str, str]] = {
    "math": """
        2: equation, integral, derivative, theorem, algebra, geometry, probability, matrix, polynomial, factorial,
           logarithm, modulo, calculus, arithmetic, sum of, square root, multiply, divided by, prime number, gleichung,
           ableitung, wurzel, wahrscheinlichkeit, ecuacion, derivada, raiz, derivee, racine
        1: prove, solve, calculate, prime, berechne, calcula, calcule
    """,
    "code": """
        2: python, javascript, typescript, rust, golang, sql, regex, bash, linux, git, docker, html, css, compiler,
           stack trace, traceback, null pointer, segfault, unit test, refactor, recursion, mutex, kubernetes, npm,
           numpy, pandas, codigo, programm
        1: function, code, script, api, json, java, exception, async, thread, class, bug, debug
    """,
    "science": """
        2: physics, chemistry, biology, quantum, molecule, atom, protein, dna, enzyme, gravity, relativity, galaxy,
           photosynthesis, evolution, neuron, thermodynamics, entropy, physik, chemie, biologie, fisica, quimica,
           physique, chimie
        1: planet, species, cell, experiment, hypothesis, energy, light
    """,
    "legal": """
        2: legal, lawyer, attorney, lawsuit, clause, liability, gdpr, copyright, patent, trademark, statute, plaintiff,
           defendant, nda, terms of service, tenancy, eviction, landlord, gesetz, vertrag, anwalt, gericht, haftung,
           contrato, abogado, contrat, avocat, tribunal
        1: law, contract, court, regulation, compliance, ley, loi
    """,
    "finance": """
        2: finance, invest, investment, stocks, bonds, portfolio, dividend, interest rate, mortgage, tax, inflation,
           balance sheet, revenue, invoice, accounting, bitcoin, valuation, aktie, steuer, kredit, zinsen, acciones,
           impuesto, hipoteca, bourse, impot
        1: stock, bond, loan, budget, crypto, money, price, yield
    """,
    "operations": """
        2: rollout, incident, outage, uptime, monitoring, runbook, on call, logistics, supply chain, warehouse,
           inventory, procurement, shipment, sla, lager, lieferkette
        1: deploy, capacity, latency, server, cluster, backup, restart
    """,
    "customer_support": """
        2: refund, my order, ticket, my account, password reset, reset my password, my subscription, cancel my,
           complaint, warranty, bestellung, ruckerstattung, pedido, reembolso, commande, remboursement
        1: order, delivery, customer, shipping, not working
    """,
}

RISKS: Final[dict[str, str]] = {
    "medium": """
        1: delete, deploy, production, publish, purchase, invest, lawsuit, tax return, personal data, salary,
           medication, symptom, symptoms, diagnosis, losche, kaufe, borra, compra, supprime
    """,
    "high": """
        1: password, api key, private key, secret key, seed phrase, credential, credentials, credit card, passport,
           social security, transfer money, wire transfer, suicide, kill myself, self harm, overdose, dosage, explosive,
           bomb, malware, ransomware, chest pain, drop table, rm rf, passwort, contrasena, uberweise, selbstmord,
           suicidio, mot de passe, medical advice, legal advice, financial advice
    """,
}

SPACELESS: Final[dict[str, dict[str, str]]] = {
    "intent": {
        "translate": "翻译 翻訳",
        "summarise": "总结 要約",
        "explain": "解释 为什么 説明",
        "write": "写一",
        "solve": "计算 計算",
        "act": "搜索 検索",
        "chat": "你好 こんにちは",
    },
    "domain": {
        "math": "数学 方程",
        "code": "代码 程序 コード",
        "science": "物理 化学",
        "legal": "法律 合同",
        "finance": "股票 投资 税",
        "customer_support": "订单 退款",
    },
    "risk": {"high": "密码 转账 自杀 パスワード", "medium": "删除 削除"},
}
"""Terms that are looked for anywhere in a text; each weighs 3."""
