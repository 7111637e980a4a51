-- A regional railway, invented for this example. The comments are what the agent reads about
-- each column; SQLite keeps them with the schema.

CREATE TABLE lines ( -- the lines that the railway runs
  line_id INTEGER PRIMARY KEY, -- key
  code TEXT NOT NULL UNIQUE, -- short name on maps, as in 'R1' or 'X2'
  name TEXT NOT NULL, -- full name, as in 'Harbour Line'
  kind TEXT NOT NULL, -- 'commuter', 'regional' or 'express'
  length_km REAL NOT NULL, -- length from end to end in kilometres
  electrified INTEGER NOT NULL, -- 1 if the whole line is electrified, else 0
  opened_year INTEGER NOT NULL -- year of the first train
);

CREATE TABLE stations ( -- stations, also those that are depots
  station_id INTEGER PRIMARY KEY, -- key
  name TEXT NOT NULL UNIQUE, -- name on the sign
  town TEXT NOT NULL, -- town that the station lies in
  district TEXT NOT NULL, -- 'North', 'East', 'South' or 'West'
  platforms INTEGER NOT NULL, -- number of platforms
  step_free INTEGER NOT NULL, -- 1 if every platform can be reached without steps, else 0
  parking_spaces INTEGER NOT NULL, -- car parking spaces, 0 if none
  opened_year INTEGER NOT NULL -- year of opening
);

CREATE TABLE line_stops ( -- which stations a line serves, in order
  line_id INTEGER NOT NULL REFERENCES lines(line_id), -- the line
  station_id INTEGER NOT NULL REFERENCES stations(station_id), -- the station
  position INTEGER NOT NULL, -- 1 for the first stop of the line, then 2, 3, ...
  km_from_start REAL NOT NULL, -- distance from the first stop in kilometres
  PRIMARY KEY (line_id, station_id)
);

CREATE TABLE units ( -- the trains themselves
  unit_id INTEGER PRIMARY KEY, -- key
  model TEXT NOT NULL, -- model of the train, as in 'Heron 4'
  seats INTEGER NOT NULL, -- number of seats
  built_year INTEGER NOT NULL, -- year of construction
  max_speed_kmh INTEGER NOT NULL, -- top speed in km/h
  depot_id INTEGER NOT NULL REFERENCES stations(station_id) -- station where it is kept
);

CREATE TABLE staff ( -- people who work for the railway
  staff_id INTEGER PRIMARY KEY, -- key
  full_name TEXT NOT NULL, -- first name and surname
  role TEXT NOT NULL, -- 'driver', 'conductor', 'dispatcher' or 'mechanic'
  hired_on TEXT NOT NULL, -- first day at work, 'YYYY-MM-DD'
  home_station_id INTEGER NOT NULL REFERENCES stations(station_id), -- where shifts begin
  monthly_pay_eur INTEGER NOT NULL -- pay before tax, euros a month
);

CREATE TABLE services ( -- one train run on one day
  service_id INTEGER PRIMARY KEY, -- key
  line_id INTEGER NOT NULL REFERENCES lines(line_id), -- line it ran on
  unit_id INTEGER NOT NULL REFERENCES units(unit_id), -- train used
  driver_id INTEGER NOT NULL REFERENCES staff(staff_id), -- who drove
  run_on TEXT NOT NULL, -- day, 'YYYY-MM-DD', all in 2024
  departs_at TEXT NOT NULL, -- planned departure, 'HH:MM'
  status TEXT NOT NULL, -- 'completed', 'shortened' or 'cancelled'
  passengers INTEGER NOT NULL -- people counted on board, 0 if cancelled
);

CREATE TABLE delays ( -- delays noted during a service, at most a few a service
  delay_id INTEGER PRIMARY KEY, -- key
  service_id INTEGER NOT NULL REFERENCES services(service_id), -- delayed service
  station_id INTEGER NOT NULL REFERENCES stations(station_id), -- where it arose
  minutes INTEGER NOT NULL, -- length in minutes
  cause TEXT NOT NULL -- 'signal', 'weather', 'crew', 'crowding', 'vehicle' or 'trespass'
);

CREATE TABLE customers ( -- people with a customer account
  customer_id INTEGER PRIMARY KEY, -- key
  full_name TEXT NOT NULL, -- first name and surname
  town TEXT NOT NULL, -- town of residence
  birth_year INTEGER NOT NULL, -- year of birth
  card TEXT NOT NULL, -- 'none', 'half-fare', 'annual' or 'student'
  joined_on TEXT NOT NULL -- day the account was opened, 'YYYY-MM-DD'
);

CREATE TABLE tickets ( -- single tickets sold to customers
  ticket_id INTEGER PRIMARY KEY, -- key
  customer_id INTEGER NOT NULL REFERENCES customers(customer_id), -- buyer
  from_station_id INTEGER NOT NULL REFERENCES stations(station_id), -- start of the trip
  to_station_id INTEGER NOT NULL REFERENCES stations(station_id), -- end of the trip
  bought_on TEXT NOT NULL, -- day of sale, 'YYYY-MM-DD', all in 2024
  price_cents INTEGER NOT NULL, -- price paid in cents (divide by 100 for euros)
  channel TEXT NOT NULL, -- 'app', 'web', 'machine' or 'counter'
  travel_class INTEGER NOT NULL -- 1 or 2
);

CREATE TABLE repairs ( -- workshop jobs on trains
  repair_id INTEGER PRIMARY KEY, -- key
  unit_id INTEGER NOT NULL REFERENCES units(unit_id), -- train repaired
  mechanic_id INTEGER NOT NULL REFERENCES staff(staff_id), -- mechanic in charge
  started_on TEXT NOT NULL, -- first day in the workshop, 'YYYY-MM-DD'
  finished_on TEXT, -- last day in the workshop, NULL while it is still there
  kind TEXT NOT NULL, -- 'brakes', 'doors', 'engine', 'interior' or 'wheels'
  cost_eur INTEGER NOT NULL -- cost in euros
);

CREATE TABLE complaints ( -- complaints by customers, about a service or in general
  complaint_id INTEGER PRIMARY KEY, -- key
  customer_id INTEGER NOT NULL REFERENCES customers(customer_id), -- who complained
  service_id INTEGER REFERENCES services(service_id), -- service it is about, NULL if general
  filed_on TEXT NOT NULL, -- day it came in, 'YYYY-MM-DD'
  topic TEXT NOT NULL, -- 'delay', 'cleanliness', 'staff', 'price' or 'crowding'
  resolved INTEGER NOT NULL -- 1 if settled, else 0
);

INSERT INTO lines VALUES
  (1, 'R1', 'Harbour Line', 'regional', 61.5, 1, 1898),
  (2, 'R2', 'Orchard Line', 'regional', 48.0, 0, 1911),
  (3, 'R3', 'Quarry Line', 'regional', 35.2, 0, 1924),
  (4, 'S1', 'City Ring', 'commuter', 22.4, 1, 1971),
  (5, 'S2', 'University Line', 'commuter', 17.9, 1, 1986),
  (6, 'S3', 'Airport Branch', 'commuter', 14.3, 1, 2004),
  (7, 'X1', 'Coast Express', 'express', 104.8, 1, 1992),
  (8, 'X2', 'Valley Express', 'express', 88.6, 1, 2011);

INSERT INTO stations VALUES
  (1, 'Wendmoor Central', 'Wendmoor', 'North', 12, 1, 420, 1896),
  (2, 'Wendmoor University', 'Wendmoor', 'North', 4, 1, 60, 1986),
  (3, 'Wendmoor Harbour', 'Wendmoor', 'North', 5, 0, 110, 1898),
  (4, 'Wendmoor Airport', 'Wendmoor', 'North', 3, 1, 800, 2004),
  (5, 'Wendmoor Market', 'Wendmoor', 'North', 2, 0, 0, 1971),
  (6, 'Wendmoor Stadium', 'Wendmoor', 'North', 4, 1, 35, 1974),
  (7, 'Aldersea', 'Aldersea', 'East', 6, 1, 240, 1901),
  (8, 'Aldersea Pier', 'Aldersea', 'East', 2, 0, 40, 1926),
  (9, 'Brackwater', 'Brackwater', 'East', 3, 1, 95, 1899),
  (10, 'Cormford', 'Cormford', 'East', 4, 1, 130, 1903),
  (11, 'Dunlow', 'Dunlow', 'East', 2, 0, 20, 1911),
  (12, 'Eskholm', 'Eskholm', 'South', 5, 1, 210, 1913),
  (13, 'Eskholm Mill', 'Eskholm', 'South', 2, 0, 15, 1924),
  (14, 'Fennick', 'Fennick', 'South', 3, 0, 70, 1912),
  (15, 'Garrowby', 'Garrowby', 'South', 2, 0, 30, 1925),
  (16, 'Hartley Vale', 'Hartley', 'South', 3, 1, 85, 1914),
  (17, 'Hartley Quarry', 'Hartley', 'South', 1, 0, 0, 1924),
  (18, 'Inverlea', 'Inverlea', 'West', 7, 1, 310, 1899),
  (19, 'Inverlea West', 'Inverlea', 'West', 2, 1, 45, 1988),
  (20, 'Juniper Hill', 'Inverlea', 'West', 2, 0, 25, 1911),
  (21, 'Keldbridge', 'Keldbridge', 'West', 4, 1, 150, 1905),
  (22, 'Larchmont', 'Larchmont', 'West', 3, 0, 60, 1911),
  (23, 'Maresby', 'Maresby', 'West', 2, 0, 0, 1927),
  (24, 'Northgate Park', 'Wendmoor', 'North', 2, 1, 500, 1999),
  (25, 'Oakhaven', 'Oakhaven', 'East', 4, 1, 175, 1992),
  (26, 'Penrith Cross', 'Penrith Cross', 'South', 5, 1, 190, 2011);

INSERT INTO line_stops VALUES
  (1, 1, 1, 0.0), (1, 3, 2, 4.1), (1, 9, 3, 17.6), (1, 10, 4, 31.0), (1, 7, 5, 52.2),
  (1, 8, 6, 61.5),
  (2, 1, 1, 0.0), (2, 11, 2, 9.8), (2, 14, 3, 20.3), (2, 20, 4, 29.9), (2, 22, 5, 38.7),
  (2, 18, 6, 48.0),
  (3, 12, 1, 0.0), (3, 13, 2, 3.9), (3, 15, 3, 14.2), (3, 16, 4, 25.5), (3, 17, 5, 35.2),
  (4, 1, 1, 0.0), (4, 5, 2, 3.2), (4, 3, 3, 7.7), (4, 6, 4, 12.9), (4, 24, 5, 17.8),
  (4, 2, 6, 22.4),
  (5, 1, 1, 0.0), (5, 6, 2, 5.6), (5, 2, 3, 11.0), (5, 24, 4, 17.9),
  (6, 1, 1, 0.0), (6, 5, 2, 3.1), (6, 4, 3, 14.3),
  (7, 1, 1, 0.0), (7, 10, 2, 31.4), (7, 7, 3, 53.0), (7, 25, 4, 104.8),
  (8, 1, 1, 0.0), (8, 18, 2, 44.5), (8, 21, 3, 60.1), (8, 12, 4, 74.9), (8, 26, 5, 88.6);
