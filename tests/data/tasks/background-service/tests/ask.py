import urllib.error
import urllib.request


def ask(method, path):
    request = urllib.request.Request("http://127.0.0.1:8471" + path, method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, ""


assert ask("GET", "/stock/chair") == (200, "11")
assert ask("GET", "/stock/sofa")[0] == 404
assert ask("POST", "/take/lamp") == (200, "1")
assert ask("POST", "/take/lamp") == (200, "0")
assert ask("POST", "/take/lamp")[0] == 409
assert ask("GET", "/stock/lamp") == (200, "0")
assert ask("GET", "/stock/chair") == (200, "11")
