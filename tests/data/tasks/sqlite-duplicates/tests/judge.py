import json
import sqlite3


def refuses_duplicates(database):
    try:
        database.execute("INSERT INTO customers (email) VALUES ('bo@example.org')")
    except sqlite3.IntegrityError:
        return True
    return False


def judge():
    database = sqlite3.connect("/app/shop.db")
    customers = database.execute("SELECT id, email FROM customers ORDER BY id").fetchall()
    sums = database.execute(
        "SELECT customer_id, count(*), sum(cents) FROM orders GROUP BY customer_id ORDER BY customer_id"
    ).fetchall()
    return {
        "customers": float(customers == [(1, "ada@example.org"), (2, "bo@example.org"), (4, "cy@example.org")]),
        "orders": float(sums == [(1, 4, 869), (2, 2, 1001), (4, 1, 30)]),
        "guarded": float(refuses_duplicates(database)),
    }


try:
    found = judge()
except sqlite3.Error as error:
    print("the database cannot be read:", error)
    found = {"customers": 0.0, "orders": 0.0, "guarded": 0.0}
found["reward"] = float(all(found.values()))
print(found)
with open("/logs/verifier/reward.json", "w") as file:
    json.dump(found, file)
