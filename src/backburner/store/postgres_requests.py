"""What the tables of requests between hosts are on Postgres beside the migrations: unlogged, uncompressed, and with notifications."""

# Applied after every migration. A crash of the server empties unlogged tables; then the readers ask again.
STATEMENTS = """
ALTER TABLE host_responses SET UNLOGGED;
ALTER TABLE host_requests SET UNLOGGED;
ALTER TABLE host_responses ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE OR REPLACE FUNCTION notify_of_request() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('backburner:' || NEW.host_id || ':requests', '');
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION notify_of_response() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('backburner:r' || NEW.request_id, '');
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER host_requests_notify AFTER INSERT ON host_requests FOR EACH ROW EXECUTE FUNCTION notify_of_request();
CREATE OR REPLACE TRIGGER folders_to_delete_notify AFTER INSERT ON folders_to_delete FOR EACH ROW EXECUTE FUNCTION notify_of_request();
CREATE OR REPLACE TRIGGER host_responses_notify AFTER INSERT ON host_responses FOR EACH ROW EXECUTE FUNCTION notify_of_response();
"""
