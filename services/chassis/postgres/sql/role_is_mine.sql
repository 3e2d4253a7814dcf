-- Whether who is logged in may take a role on; before Postgres 16, every member may.
select case
    when current_setting('server_version_num')::int >= 160000 then pg_has_role(session_user, $1::name, 'SET')
    else pg_has_role(session_user, $1::name, 'MEMBER')
end
