-- Runs with every migration: who may count the operations windows, and who may read them.
alter table threadlog.window_cells enable row level security;
alter table threadlog.window_cells force row level security;

drop policy if exists of_who_counts on threadlog.window_cells;
create policy of_who_counts on threadlog.window_cells to threadlog_rollups using (true) with check (true);
drop policy if exists of_its_tenant on threadlog.window_cells;
create policy of_its_tenant on threadlog.window_cells for select to threadlog_reader
    using (tenant = current_setting('app.tenant_id', true));
drop policy if exists of_all_tenants on threadlog.window_cells;
create policy of_all_tenants on threadlog.window_cells for select to threadlog_operator using (true);

grant select, insert, update, delete on threadlog.window_cells, threadlog.window_positions to threadlog_rollups;
grant select on threadlog.window_cells to threadlog_reader, threadlog_operator;
