"""Seeds of masters and slaves: whole brokers with small files, which lag, expire and lose disks."""
