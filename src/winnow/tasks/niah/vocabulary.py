"""Words of needles; where there are two, the second is what a right answer has."""

from __future__ import annotations

CITIES = (
    *("Lisbon", "Oslo", "Quito", "Hanoi", "Tallinn", "Nairobi", "Kyoto", "Bergen"),
    *("Porto", "Havana", "Riga", "Cusco", "Galway", "Tbilisi", "Adelaide", "Vancouver"),
)

TREATS = (
    ("eat a baked pear", "pear"),
    ("drink a glass of birch juice", "birch"),
    ("buy a bag of roasted chestnuts", "chestnuts"),
    ("share a bowl of lentil soup", "lentil"),
    ("order a slice of walnut cake", "walnut"),
    ("try the smoked trout", "trout"),
    ("taste the pumpkin bread", "pumpkin"),
    ("have a cup of nettle tea", "nettle"),
    ("eat a plate of grilled leeks", "leeks"),
    ("pick up a jar of quince jam", "quince"),
)

SIGHTS = (
    ("feed the swans at the old canal", "swans"),
    ("ride the yellow funicular", "funicular"),
    ("watch the glassblowers on the quay", "glassblowers"),
    ("climb the water tower", "water tower"),
    ("fly a kite over the racecourse", "kite"),
    ("listen to the carillon of the guildhall", "carillon"),
    ("row a boat around the observatory island", "observatory"),
    ("visit the museum of umbrellas", "umbrellas"),
    ("play chess under the plane trees", "chess"),
    ("sketch the cranes of the shipyard", "cranes"),
)

TIMES = (
    ("on a foggy morning", "foggy"),
    ("during the first snow", "snow"),
    ("after a thunderstorm", "thunderstorm"),
    ("on the longest day of the year", "longest day"),
    ("in the week before the harvest", "harvest"),
    ("at the turn of the tide", "tide"),
    ("under a full moon", "full moon"),
    ("on a public holiday", "holiday"),
)

DISHES = ("lasagna", "omelet", "chowder", "casserole", "pancake", "goulash", "risotto", "quiche", "burrito", "strudel")

INGREDIENTS = (
    ("Juniper berries are", "juniper"),
    ("Smoked paprika is", "paprika"),
    ("Pickled radishes are", "radish"),
    ("Black garlic is", "garlic"),
    ("Toasted almonds are", "almond"),
    ("Rhubarb is", "rhubarb"),
    ("Fennel seeds are", "fennel"),
    ("Buttermilk is", "buttermilk"),
    ("Sun-dried apricots are", "apricot"),
    ("Horseradish is", "horseradish"),
    ("Capers are", "caper"),
    ("Maple syrup is", "maple"),
    ("Brown mushrooms are", "mushroom"),
    ("Cardamom is", "cardamom"),
    ("Wild thyme is", "thyme"),
)

NAMES = (
    *("Tessa", "Rowan", "Ilka", "Marius", "Delia", "Anton", "Priya", "Gustav"),
    *("Leona", "Felix", "Noor", "Silas", "Wanda", "Hugo", "Carmen", "Emil"),
)

PASTIMES = (
    ("paint tiny wooden ships and listen to the rain in the attic", "wooden ships"),
    ("bake rye bread at dawn and share it with the ferry crew", "rye bread"),
    ("collect railway timetables and bind them in green leather", "timetables"),
    ("grow tomatoes on the balcony and name every one of them", "tomatoes"),
    ("repair broken clocks and give them to the neighbors", "clocks"),
    ("swim across the lake and dry off on the warm stones", "lake"),
    ("photograph old bridges and write postcards about them", "bridges"),
    ("play the accordion in the courtyard and teach the children new songs", "accordion"),
    ("watch migrating geese and note their numbers in a diary", "geese"),
    ("knit long scarves and leave them on park benches", "scarves"),
    ("study the stars with a homemade telescope and draw maps of them", "telescope"),
    ("polish marbles and race them down the stairs", "marbles"),
)
