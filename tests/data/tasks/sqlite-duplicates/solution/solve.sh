#!/bin/bash
python3 - <<'P'
import sqlite3

with sqlite3.connect("/app/shop.db") as database:
    database.executescript("""
        CREATE TEMP TABLE kept AS
            SELECT id, (SELECT min(o.id) FROM customers o WHERE lower(trim(o.email)) = lower(trim(c.email))) AS first
            FROM customers c;
        UPDATE orders SET customer_id = (SELECT first FROM kept WHERE id = customer_id);
        DELETE FROM customers WHERE id NOT IN (SELECT first FROM kept);
        UPDATE customers SET email = lower(trim(email));
        CREATE UNIQUE INDEX one_customer ON customers (lower(trim(email)));
    """)
P
