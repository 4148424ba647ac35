[ ! -e /tests ] && [ -s delivery.txt ]
