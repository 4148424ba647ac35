set -e
git init -q -b main /app/prices
cd /app/prices
git config user.name Shop
git config user.email shop@example.org
printf 'apples,3\n' > spring.csv
git add . && git commit -qm "Prices of spring"
printf 'plums,4\n' > summer.csv
git add . && git commit -qm "Prices of summer"
printf 'pumpkins,7\nwalnuts,12\n' > autumn.csv
git add . && git commit -qm "Prices of autumn"
git reset -q --hard HEAD~1
