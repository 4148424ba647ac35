import sqlite3

with sqlite3.connect("/app/shop.db") as database:
    database.executescript(
        "CREATE TABLE customers (id INTEGER PRIMARY KEY, email TEXT NOT NULL);"
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, cents INTEGER NOT NULL);"
    )
    emails = ["Ada@example.org", "bo@example.org ", "ada@example.org", "cy@example.org", " ADA@example.org", "BO@example.org"]
    database.executemany("INSERT INTO customers (email) VALUES (?)", [(email,) for email in emails])
    orders = [(1, 500), (3, 250), (5, 99), (2, 1000), (6, 1), (4, 30), (3, 20)]
    database.executemany("INSERT INTO orders (customer_id, cents) VALUES (?, ?)", orders)
