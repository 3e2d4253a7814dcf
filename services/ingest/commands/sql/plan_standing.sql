select version, status, decided_by, decided_at, decision_reason
from views.plans
where tenant = $1 and thread = $2 and version = $3
