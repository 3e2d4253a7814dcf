-- Whether the login may act as a role. Before Postgres 16 every member may.
select case
    when current_setting('server_version_num')::int >= 160000 then pg_has_role(session_user, $1::name, 'SET')
    else pg_has_role(session_user, $1::name, 'MEMBER')
end
